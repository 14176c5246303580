//! Limited containers, through real runtimes: what they see, and what they cannot undo.

mod common;

use common::{each_way, host, runtimes};
use vgpu_test_harness::Bundle;

fn limited() -> Bundle {
    Bundle::new().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30")
}

#[test]
fn everything_is_mounted_and_nothing_can_be_changed() {
    let script = "
        cat /etc/ld.so.preload; cat /usr/local/vgpu/libvgpu.so
        for file in /etc/ld.so.preload /usr/local/vgpu/libvgpu.so /usr/local/vgpu/limits; do
            echo x 2>&- >$file && echo wrote $file
        done
        for file in /etc/ld.so.preload /usr/local/vgpu/libvgpu.so /usr/local/vgpu/limits /usr/local/vgpu/region; do
            rm -f $file 2>&- && echo removed $file
            mv $file /tmp/x 2>&- && echo moved $file
            umount $file 2>&- && echo unmounted $file
        done
        for folder in /etc /usr /usr/local /usr/local/vgpu; do
            mv $folder /tmp/x 2>&- && echo moved $folder
        done
        su -s /bin/sh nobody -c 'printf x >>/usr/local/vgpu/region' || echo cannot write the region
        wc -c </usr/local/vgpu/limits";
    each_way(|host, way| {
        let passwd = "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
        let seen = way.run(host, limited().file("/etc/passwd", passwd.as_bytes()).shell(script)).ok();
        assert_eq!(seen, "/usr/local/vgpu/libvgpu.so\nstands in for the library\n4096\n", "{way:?}");
        assert_eq!(host.containers(), [] as [std::path::PathBuf; 0], "{way:?}");
    });
}

#[test]
fn exec_sees_the_same() {
    for runtime in runtimes() {
        let host = host(runtime);
        let bundle = limited().args(&["/bin/sleep", "600"]);
        let container = host.start(&bundle);
        assert_eq!(container.exec("cat /etc/ld.so.preload").ok(), "/usr/local/vgpu/libvgpu.so\n");
        assert_eq!(host.containers().len(), 1);
        let _ = container.delete().ok();
        assert_eq!(host.containers().len(), 0, "{runtime:?}");
    }
}
