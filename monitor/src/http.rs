//! A small HTTP server: `/metrics` and `/healthz`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tiny_http::{Header, Method, Request, Response};

use crate::metrics;
use crate::service::{Settings, Shared};

/// Answers until it is dropped.
pub struct Server {
    server: Arc<tiny_http::Server>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl Server {
    /// Listens where the settings say.
    ///
    /// # Errors
    /// It cannot.
    pub fn start(settings: &Settings, shared: &Arc<Shared>) -> io::Result<Self> {
        let told = |error| io::Error::other(format!("cannot listen on {}: {error}", settings.listen));
        let server = Arc::new(tiny_http::Server::http(settings.listen).map_err(told)?);
        let address = server.server_addr().to_ip().unwrap_or(settings.listen);
        let (listener, settings, shared) = (Arc::clone(&server), settings.clone(), Arc::clone(shared));
        let thread = thread::spawn(move || {
            for request in listener.incoming_requests() {
                answer(request, &settings, &shared);
            }
        });
        Ok(Self { server, thread: Some(thread), address })
    }

    /// Where it listens.
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

fn answer(request: Request, settings: &Settings, shared: &Shared) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, content_type, text) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            let (snapshot, tallies) = shared.last();
            let tally = |id: &str| tallies.get(id).copied().unwrap_or_default();
            match metrics::text(&snapshot, &settings.node, settings.dialect, tally) {
                Ok(text) => (200, metrics::CONTENT_TYPE, text),
                Err(why) => (500, "text/plain", format!("{why}\n")),
            }
        }
        (Method::Get | Method::Head, "/healthz") if shared.is_healthy() => (200, "text/plain", "ok\n".to_owned()),
        (Method::Get | Method::Head, "/healthz") => (503, "text/plain", "nothing was looked at of late\n".to_owned()),
        (Method::Get | Method::Head, _) => (404, "text/plain", "there are /metrics and /healthz\n".to_owned()),
        _ => (405, "text/plain", "only GET\n".to_owned()),
    };
    let mut response = Response::from_string(text).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", content_type) {
        response = response.with_header(header);
    }
    // Whoever asked may be gone.
    let _ = request.respond(response);
}
