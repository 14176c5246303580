use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};

use super::*;

#[test]
fn own_process_is_read() {
    let mut this = Process::read(std::process::id()).unwrap();
    assert!(this.start_time > 0 && !this.has_exited && this.pid_namespace != 0);
    assert!(this.refresh());
    assert!(!Process { start_time: this.start_time + 1, ..this }.refresh(), "the PID was reused");
    assert!(Process::read(u32::MAX).is_none());
}

#[test]
fn names_with_parentheses_and_newlines_are_parsed() {
    let parsed = |stat: &str| Stat::parse(stat).map(|stat| (stat.name.clone(), stat.has_exited(), stat.start_time));
    let stat = "7 (a) Z\n) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4242 20";
    assert_eq!(parsed(stat), Some(("a) Z?".to_owned(), false, 4242)));
    assert_eq!(parsed("8 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 99 20"), Some(("x".to_owned(), true, 99)));
    assert_eq!(parsed("8 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 2 18 99 20"), Some(("x".to_owned(), false, 99)));
    assert_eq!(parsed("garbage"), None);
    assert_eq!(parse_inner_pid("Name:\tx\nNSpid:\t4000\t7\n"), Some(7));
    assert_eq!(parse_cgroups("4:memory:/a/b\n3:cpu:/a/b\n0::/c:d\n"), ["/a/b", "/c:d"]);
}

/// Starts a program that prints a line when it is ready, and then waits.
fn ready(command: &mut Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let _ = BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    child
}

#[test]
fn a_name_that_is_not_utf_8_hides_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join(OsStr::from_bytes(b"x\xff\xfey"));
    // A copy, as the name of a process is that of its file.
    fs::copy("/bin/cat", &program).unwrap();
    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The name changes when the exec is complete, after which the program answers.
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    let _ = BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    let found = Process::read(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    let found = found.expect("the process is seen");
    assert_eq!(found.name, "x\u{fffd}\u{fffd}y");
    assert!(found.pid_namespace != 0 && !found.cgroups.is_empty());
}

#[test]
fn a_process_whose_first_thread_has_exited_is_alive() {
    let script = "import ctypes, threading, time\n\
        def rest():\n  print('ready', flush=True)\n  time.sleep(60)\n\
        threading.Thread(target=rest).start()\n\
        ctypes.CDLL(None).pthread_exit(None)";
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        return eprintln!("SKIPPED: python3 is not installed");
    }
    let mut child = ready(Command::new("python3").args(["-c", script]));
    let leader_has_exited = || Stat::read(CWD, &format!("/proc/{}/stat", child.id())).is_some_and(|stat| stat.has_leader_exited);
    while !leader_has_exited() {
        std::thread::yield_now();
    }
    let (found, this) = (Process::read(child.id()).unwrap(), Process::read(std::process::id()).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!found.has_exited);
    assert_eq!((&found.cgroups, found.mount_namespace), (&this.cgroups, this.mount_namespace), "as those of a living thread");
}

#[test]
fn a_zombie_has_exited() {
    let mut child = Command::new("true").spawn().unwrap();
    let mut found = Process::read(child.id()).unwrap();
    while !found.has_exited {
        assert!(found.refresh(), "a child that nobody waited for");
    }
    child.wait().unwrap();
    assert!(!found.refresh());
}
