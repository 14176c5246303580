//! Hostile clients of the monitor's HTTP server. While each attacks, the monitor finds a violation and ends it.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use common::{Monitor, ready, wait_for};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vgpu_e2e::{Fill, Machine, Running, Way};
use vgpu_test_harness::Host;

/// Connections that stay idle: more than a process may usually have open.
const IDLE: usize = 1500;

/// Starts a program without the library.
fn bypass(host: &Host, machine: &Machine) -> Running {
    let script = r"sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 > /tmp/ld && chmod 755 /tmp/ld && \
        exec /tmp/ld --library-path /usr/local/vgpu/driver:/simgpu /programs/fill --chunk 64M --max 256M --hold 600";
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").args(&["/bin/sh", "-c", script]);
    let mut running = Way::Wrapper.start(host, bundle);
    let _ = Fill::of(&running.line());
    running
}

/// Connects and sends bytes, slowly if `pause` is set. The server may close the connection at any time.
fn send(address: &str, bytes: &[u8], pause: Option<Duration>, stop: &AtomicBool) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(1))).ok()?;
    match pause {
        None => stream.write_all(bytes).ok()?,
        Some(pause) => {
            for byte in bytes.iter().take_while(|_| !stop.load(Relaxed)) {
                stream.write_all(&[*byte]).ok()?;
                thread::sleep(pause);
            }
        }
    }
    Some(stream)
}

/// What each kind of client sends, and whether slowly.
fn attacks() -> Vec<(&'static str, Vec<u8>, Option<Duration>)> {
    let get = |headers: &str| format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{headers}\r\n").into_bytes();
    let slowly = Some(Duration::from_millis(100));
    vec![
        ("sends its headers slowly", get(&"X: y\r\n".repeat(60)), slowly),
        ("never reads", get(""), None),
        ("sends a header of 150 MB", get(&format!("X: {}\r\n", "x".repeat(150_000_000))), None),
        ("claims an overflowing length", get("Content-Length: 18446744073709551615\r\n"), None),
        ("declares a body that never comes", get("Content-Length: 1000000\r\n"), None),
        ("sends many requests at once", get("").repeat(10_000), None),
        (
            "sends chunks of nonsense",
            [get("Transfer-Encoding: chunked\r\n"), b"FFFFFFFFFFFFFFFF\r\n-1\r\n;;\r\n".repeat(100)].concat(),
            None,
        ),
        ("speaks HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(), None),
        ("speaks TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(50), None),
    ]
}

#[test]
fn hostile_clients_disturb_neither_enforcement_nor_metrics() {
    let Some((_kit, machine, host)) = ready() else { return };
    let most = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: most.maximum, ..most }).unwrap();
    host.policy("on_violation = \"kill\"\nviolation_grace_seconds = 1");
    let monitor = Monitor::start(&host, &machine);
    wait_for("the monitor answers", || monitor.try_get("/healthz").filter(|response| response.starts_with("HTTP/1.1 200")));
    let parts = monitor.parts();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for (kind, bytes, pause) in attacks() {
            let (address, stop) = (monitor.address(), &stop);
            scope.spawn(move || {
                let mut open = Vec::new();
                while !stop.load(Relaxed) {
                    open.extend(send(address, &bytes, pause, stop));
                    open.truncate(100);
                    thread::sleep(Duration::from_millis(20));
                }
                println!("stopped the client that {kind}");
            });
        }
        let idle: Vec<TcpStream> = (0..IDLE).filter_map(|_| TcpStream::connect(monitor.address()).ok()).collect();
        assert!(idle.len() > 1024, "{}", idle.len());
        let mut bypassing = bypass(&host, &machine);
        let lines = monitor.wait_for_log("ended process");
        assert!(lines.iter().any(|line| line.contains("bypasses the library") && line.contains(&bypassing.id)), "{lines:#?}");
        assert!(!bypassing.finish(), "it was killed");
        stop.store(true, Relaxed);
    });
    assert!(monitor.get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(monitor.get("/metrics").contains("vgpu_monitor_restarts_total{part=\"http\"} 0"), "nothing ended");
    assert_eq!(monitor.parts(), parts);
    let mut stream = TcpStream::connect(monitor.address()).unwrap();
    stream.write_all(b"HEAD /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut head = String::new();
    stream.read_to_string(&mut head).unwrap();
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
}
