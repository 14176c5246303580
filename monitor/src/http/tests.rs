use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use super::*;

/// Size of the test's metrics: more than the kernel buffers for a client that does not read.
const SIZE: usize = 16 << 20;

/// Pages with these credentials.
#[derive(Default)]
struct Fixed(Guard);

impl Pages for Fixed {
    fn guard(&self) -> Guard {
        self.0.clone()
    }

    fn metrics(&self) -> Page {
        Page::plain(StatusCode::OK, vec![b'#'; SIZE])
    }

    fn health(&self) -> Page {
        Page::plain(StatusCode::OK, "ok\n")
    }

    fn state(&self, query: &str) -> Page {
        Page::plain(StatusCode::OK, format!("state {query}"))
    }

    fn history(&self, query: &str) -> Page {
        Page::plain(StatusCode::OK, format!("history {query}"))
    }
}

/// Starts a server, which runs until the test's process ends.
fn start() -> SocketAddr {
    start_with(Guard::default())
}

fn start_with(guard: Guard) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || run(listener, Arc::new(Fixed(guard)), || {}));
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
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
        ("GET /page HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("GET /page/page.js HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
        ("POST /page/state.json HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"),
        ("GET /metrics/../healthz HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"),
        ("CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", "405"),
    ] {
        assert_eq!(status(address, request), expected, "{request:?}");
    }
    let metrics = answer(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(metrics.iter().filter(|byte| **byte == b'#').count(), SIZE);
}

/// The page runs no script and shows nothing of others, whatever a name contains, and the answers know what was asked.
#[test]
fn the_page_is_confined_and_its_queries_arrive() {
    let address = start();
    let asked = |host: &str, path: &str| {
        String::from_utf8(answer(address, format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())).unwrap()
    };
    let text = |path: &str| asked("localhost:9394", path);
    let page = text("/");
    for expected in ["content-type: text/html", "content-security-policy: default-src 'none'; script-src 'self'", "frame-ancestors 'none'"]
    {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    for part in page.split(['"', '\'']).filter(|part| part.starts_with("page/")) {
        assert!(text(&format!("/{part}")).starts_with("HTTP/1.1 200"), "{part}");
    }
    assert!(text("/page/state.json?since=1.2").ends_with("state since=1.2"));
    assert!(text("/page/history.json?ids=1,2").ends_with("history ids=1,2"));
    for path in ["/page/state.json", "/page/history.json"] {
        assert!(asked("evil.example", path).starts_with("HTTP/1.1 403"), "{path}");
    }
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

/// Returns credentials with a token, and with a certificate for `localhost` if `tls` is set; and the certificate.
fn credentials(tls: bool) -> (Guard, rustls_pki_types::CertificateDer<'static>) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for (name, content) in [("token", TOKEN.to_owned()), ("crt", made.cert.pem()), ("key", made.signing_key.serialize_pem())] {
        std::fs::write(path(name), content).unwrap();
    }
    let files = CredentialFiles { tls: tls.then(|| (path("crt"), path("key"))), token: Some(path("token")) };
    (files.load().unwrap().guard().unwrap(), made.cert.der().clone())
}

/// Token of the tests.
const TOKEN: &str = "0123456789abcdef";

#[test]
fn what_is_about_containers_requires_the_token_and_the_rest_does_not() {
    let address = start_with(credentials(false).0);
    for (path, header, expected) in [
        ("/metrics", "", "401"),
        ("/metrics", "Authorization: Bearer 0123456789abcdeX\r\n", "401"),
        ("/metrics", "Authorization: Bearer 0123456789abcdef\r\n", "200"),
        ("/metrics?x", "", "401"),
        ("/page/state.json", "", "401"),
        ("/page/history.json?ids=1", "", "401"),
        ("/page/state.json", "Authorization: Bearer 0123456789abcdef\r\n", "200"),
        ("/", "", "200"),
        ("//metrics", "", "404"),
        ("/healthz", "", "200"),
    ] {
        assert_eq!(status(address, &format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n")), expected, "{path} {header:?}");
    }
}

#[test]
fn a_certificate_means_tls_only() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    let (guard, certificate) = credentials(true);
    let address = start_with(guard);
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let response = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(async {
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let mut stream =
            connector.connect("localhost".try_into().unwrap(), tokio::net::TcpStream::from_std(stream).unwrap()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        String::from_utf8(response).unwrap()
    });
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("ok\n"), "{response}");
    assert_ne!(status(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), "200", "plain HTTP");
}
