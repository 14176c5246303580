//! The region, which the container may write: it does not grow, and nobody else writes it.

mod common;

use common::{each_way, host, runtimes};
use vgpu_test_harness::Bundle;

fn limited() -> Bundle {
    Bundle::new().annotation("nvidia.com/gpumem", "1024")
}

/// The container's root fills its region; the host's file system stays as it is.
#[test]
fn the_region_does_not_grow() {
    let script = "
        cd /usr/local/vgpu
        dd if=/dev/zero of=region bs=1M count=64 seek=1 conv=notrunc 2>&- && echo grew
        dd if=/dev/zero of=region bs=1M seek=1M count=0 2>&-
        dd if=/dev/zero of=region bs=1M seek=512 count=8 conv=notrunc 2>&- && echo grew behind a hole
        dd if=/dev/zero of=region bs=1k count=16 conv=notrunc 2>&- && echo wrote
        du -k region | cut -f1";
    let limit = (vgpu_region::region::SIZE / 1024).to_string();
    let expected = format!("wrote\n{limit}\n");
    each_way(|host, way| {
        for (who, bundle) in [
            ("root", limited()),
            ("another user", limited().user(1000)),
            ("the root of a user namespace", limited().user_namespace(100_000)),
            ("another user of a user namespace", limited().user_namespace(100_000).user(1000)),
        ] {
            assert_eq!(way.run(host, bundle.shell(script)).ok(), expected, "{who}, {way:?}");
        }
    });
}

/// Another user of the host does not reach the files of a container, whose region every user inside may write.
#[test]
fn other_users_of_the_host_cannot_write_regions() {
    for runtime in runtimes() {
        for bundle in [limited(), limited().user_namespace(100_000)] {
            let (host, bundle) = (host(runtime), bundle.args(&["/bin/sleep", "600"]));
            let container = host.start(&bundle);
            let region = host.containers()[0].join("region");
            let write = |user: &str| {
                let mut write = std::process::Command::new("setpriv");
                write.args(["--reuid", user, "--regid", user, "--clear-groups", "sh", "-c", "printf v 1<>\"$0\""]).arg(&region);
                write.stderr(std::process::Stdio::null()).status().unwrap().success()
            };
            assert!(!write("1000"), "{runtime:?}");
            assert!(write("0"), "{runtime:?}");
            assert_eq!(container.exec("printf v 1<>/usr/local/vgpu/region && echo wrote").ok(), "wrote\n", "{runtime:?}");
        }
    }
}
