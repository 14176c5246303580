use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use super::*;

/// Size of the test's metrics: more than the kernel buffers for a client that does not read.
const SIZE: usize = 16 << 20;

struct Fixed;

impl Pages for Fixed {
    fn metrics(&self) -> Page {
        Page::plain(StatusCode::OK, vec![b'#'; SIZE])
    }

    fn health(&self) -> Page {
        Page::plain(StatusCode::OK, "ok\n")
    }
}

/// Starts a server, which runs until the test's process ends.
fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || run(listener, Arc::new(Fixed), || {}));
    address
}

/// Sends bytes, and returns all that the server answers before it closes the connection.
fn answer(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(request);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    response
}

fn status(address: SocketAddr, request: &str) -> String {
    String::from_utf8_lossy(&answer(address, request.as_bytes())).split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn paths_and_methods_have_their_answers() {
    let address = start();
    for (request, expected) in [
        ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
        ("GET /healthz?x=1 HTTP/1.0\r\n\r\n", "200"),
        ("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("GET /metrics/../healthz HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"),
        ("CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", "405"),
    ] {
        assert_eq!(status(address, request), expected, "{request:?}");
    }
    let metrics = answer(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(metrics.iter().filter(|byte| **byte == b'#').count(), SIZE);
}

/// A body is never waited for, however long it claims to be, and a second request on a connection is not answered.
#[test]
fn bodies_and_further_requests_are_ignored() {
    let address = start();
    for (headers, may_be_answered) in [
        ("Content-Length: 1000000", true),
        ("Content-Length: 18446744073709551615", false),
        ("Content-Length: 18446744073709551616", false),
        ("Content-Length: -1", false),
        ("Content-Length: 1\r\nContent-Length: 2", false),
        ("Transfer-Encoding: chunked", true),
        ("Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nxxxx", true),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", true),
        ("Expect: 100-continue\r\nContent-Length: 5", true),
    ] {
        let found = status(address, &format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n"));
        let is_refused = ["400", "431", ""].contains(&found.as_str());
        assert!(is_refused || (may_be_answered && found == "200"), "{headers:?}: {found:?}");
        assert_eq!(status(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), "200", "after {headers:?}");
    }
    let two = answer(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2).as_bytes());
    assert_eq!(String::from_utf8_lossy(&two).matches("HTTP/1.1").count(), 1);
}

#[test]
fn what_is_not_http_1_is_refused() {
    let address = start();
    let large = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(1000));
    let tls_hello = "\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03 and so on";
    for request in [&large, &many, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", tls_hello, "\0\0\0\0\r\n\r\n", "GET\r\n\r\n"] {
        let found = status(address, request);
        assert!(["400", "431", "505", ""].contains(&found.as_str()), "{:?}: {found:?}", request.get(..20));
        assert_eq!(status(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), "200");
    }
}

/// Many more clients than connections, none of which lets its connection end: the next client is answered all the same.
#[test]
fn clients_that_occupy_connections_keep_nobody_out() {
    let address = start();
    let mut hostile = Vec::new();
    for request in ["", "GET /hea", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"] {
        for _ in 0..3 * MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(address).unwrap();
            let _ = stream.write_all(request.as_bytes());
            hostile.push(stream);
        }
        assert_eq!(status(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), "200", "beside clients that send {request:?}");
    }
    // Each of them was closed but for as many as may be open.
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        loop {
            match stream.read(&mut [0; 65536]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    };
    assert!(hostile.iter_mut().filter_map(|stream| is_open(stream).then_some(())).count() <= MAX_CONNECTIONS);
}
