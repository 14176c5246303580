//! HTTP server for `/metrics` and `/healthz`.

use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tiny_http::{Header, Method, Request, Response};

use crate::latest::Latest;
use crate::metrics::{self, Dialect};

/// Settings of the metrics.
#[derive(Clone, Debug)]
pub struct Exposition {
    /// Node name in HAMi's metrics.
    pub node: String,
    /// HAMi's metric names to expose.
    pub dialect: Dialect,
}

/// Server thread. Answers requests until dropped.
pub struct Server {
    server: Arc<tiny_http::Server>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl Server {
    /// Starts to answer on a listening socket.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn start(listener: TcpListener, exposition: Exposition, latest: Arc<Latest>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let from_box = |error: Box<dyn Error + Send + Sync>| io::Error::other(error);
        let server = Arc::new(tiny_http::Server::from_listener(listener, None).map_err(from_box)?);
        let requests = Arc::clone(&server);
        let thread = thread::spawn(move || {
            for request in requests.incoming_requests() {
                answer(request, &exposition, &latest);
            }
        });
        Ok(Self { server, thread: Some(thread), address })
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(request: Request, exposition: &Exposition, latest: &Latest) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, content_type, text) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            let (snapshot, tallies) = latest.get();
            let tally = |dir_name: &str| tallies.get(dir_name).copied().unwrap_or_default();
            match metrics::text(&snapshot, &exposition.node, exposition.dialect, tally) {
                Ok(text) => (200, metrics::CONTENT_TYPE, text),
                Err(error) => (500, "text/plain", format!("{error}\n")),
            }
        }
        (Method::Get | Method::Head, "/healthz") if latest.is_healthy() => (200, "text/plain", "ok\n".to_owned()),
        (Method::Get | Method::Head, "/healthz") => (503, "text/plain", "the last snapshot is stale\n".to_owned()),
        (Method::Get | Method::Head, _) => (404, "text/plain", "expected /metrics or /healthz\n".to_owned()),
        _ => (405, "text/plain", "expected GET or HEAD\n".to_owned()),
    };
    let mut response = Response::from_string(text).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", content_type) {
        response = response.with_header(header);
    }
    // The client may have closed the connection.
    let _ = request.respond(response);
}
