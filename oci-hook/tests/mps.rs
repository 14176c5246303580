//! The folder of an MPS daemon's pipes in a container: clients reach the daemon, and cannot change its files.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::process::Command;

use common::{host, runtimes};
use vgpu_test_harness::Bundle;

/// Connects to the daemon's socket, writes to its pipe, and tries to change its files.
const SCRIPT: &str = r#"
    cd /usr/local/vgpu/mps
    perl -MSocket -e 'socket(my $s, PF_UNIX, SOCK_STREAM, 0); connect($s, sockaddr_un("control")) or die $!; syswrite($s, "hello")'
    echo hello >pipe
    for file in control pipe pid; do
        rm -f $file 2>&- && echo removed $file
        mv $file x 2>&- && echo moved $file
        chmod 0 $file 2>&- && echo changed $file
    done
    echo x 2>&- >pid && echo wrote
    touch new 2>&- && echo created
    true"#;

#[test]
fn clients_reach_the_daemon_and_cannot_change_its_files() {
    for runtime in runtimes() {
        let (host, daemon) = (host(runtime), tempfile::tempdir().unwrap());
        let path = |name: &str| daemon.path().join(name);
        let listener = UnixListener::bind(path("control")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        fs::write(path("pid"), "1\n").unwrap();
        host.policy(&format!("[mps]\npipe_directory = {:?}", daemon.path()));
        // Opened for reading and writing, so that the container's end does not wait for this one.
        let mut pipe = fs::OpenOptions::new().read(true).write(true).open(path("pipe")).unwrap();
        let bundle = Bundle::of_host().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30").shell(SCRIPT);
        assert_eq!(host.run(&bundle).ok(), "", "{runtime:?}");
        let (mut said, mut written) = (String::new(), [0; 6]);
        listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
        pipe.read_exact(&mut written).unwrap();
        assert_eq!((said.as_str(), &written), ("hello", b"hello\n"), "{runtime:?}");
        assert_eq!(fs::read_dir(daemon.path()).unwrap().count(), 3, "{runtime:?}");
        assert_eq!(fs::read_to_string(path("pid")).unwrap(), "1\n", "{runtime:?}");
    }
}
