//! HTTP server for `/metrics`, `/healthz` and the web page.
//!
//! Whoever can connect may be hostile, so each connection is bounded: in number, in the size of its headers, in the time for these, and in
//! its whole duration. It carries one request, whose body is never read. The newest connection is served at the cost of the oldest one, so
//! clients that only occupy connections do not keep others out. `/metrics` and the state of the page may require a token; `/healthz` and the
//! files of the page say little and never do.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tracing::debug;

use crate::web;

mod address;
mod credentials;

pub use address::address;
pub use credentials::{CredentialFiles, Credentials, Guard};

/// Maximum number of connections. The oldest one is closed for one more.
pub const MAX_CONNECTIONS: usize = 64;
/// Maximum size of a request's headers in bytes.
const MAX_HEADER_SIZE: usize = 16 << 10;
/// Maximum number of a request's headers.
const MAX_HEADERS: usize = 64;
/// Time for a client to send the headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a whole connection, from its acceptance until the client has read the response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two calls of `beat`.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Wait after a failed `accept`, for example for lack of file descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Path of the page's state.
const STATE: &str = "/page/state.json";
/// Path of the page's histories.
const HISTORY: &str = "/page/history.json";
/// Headers of all responses. The page runs and shows nothing that is not a file of this server, and nothing is kept: all of it is about now.
const HEADERS: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-store"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// Text of a page with its status and content type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub status: StatusCode,
    /// Content type.
    pub content_type: &'static str,
    /// Content.
    pub text: Bytes,
}

impl Page {
    /// Returns a page of plain text.
    #[must_use]
    pub fn plain(status: StatusCode, text: impl Into<Bytes>) -> Self {
        Self { status, content_type: "text/plain", text: text.into() }
    }
}

/// Content that the server answers with, and what protects it.
pub trait Pages: Send + Sync + 'static {
    /// Returns the current credentials.
    fn guard(&self) -> Guard;
    /// Returns the metrics.
    fn metrics(&self) -> Page;
    /// Returns whether the monitor is healthy: 200 or 503.
    fn health(&self) -> Page;
    /// Returns the state of the web page, for a request with this query.
    fn state(&self, query: &str) -> Page;
    /// Returns histories for the web page, for a request with this query.
    fn history(&self, query: &str) -> Page;
}

/// Runs a server on a listening socket, on this thread and without end. Calls `beat` every second.
///
/// # Errors
/// The socket cannot be used.
pub fn run(listener: TcpListener, pages: Arc<impl Pages>, mut beat: impl FnMut()) -> io::Result<Infallible> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let (mut server, mut ticks) =
            (pin!(serve(tokio::net::TcpListener::from_std(listener)?, pages)), tokio::time::interval(BEAT_INTERVAL));
        loop {
            let tick = pin!(ticks.tick());
            match select(server.as_mut(), tick).await {
                Either::Left((never, _)) => match never {},
                Either::Right(_) => beat(),
            }
        }
    })
}

/// Serves connections without end.
async fn serve(listener: tokio::net::TcpListener, pages: Arc<impl Pages>) -> Infallible {
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(tokio::spawn(connection(stream, Arc::clone(&pages))).abort_handle());
        // A request that has arrived is answered before the next connection is accepted, which may end this one.
        tokio::task::yield_now().await;
    }
}

/// Answers the one request of a connection, with TLS if there is a certificate.
async fn connection(stream: TcpStream, pages: Arc<impl Pages>) {
    let is_loopback = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let mut guard = pages.guard();
    guard.is_loopback = is_loopback;
    let served = async {
        let Some(tls) = &guard.tls else { return answer(stream, &guard, &*pages).await };
        match tokio::time::timeout(HEADER_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => answer(stream, &guard, &*pages).await,
            Ok(Err(error)) => debug!(%error, "TLS failed"),
            Err(_) => debug!("TLS took too long"),
        }
    };
    if tokio::time::timeout(CONNECTION_TIMEOUT, served).await.is_err() {
        debug!("closed a connection that took too long");
    }
}

/// Answers one request on a stream: what a connection comes to behind the limits on connections and behind TLS.
pub async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, guard: &Guard, pages: &impl Pages) {
    let answer = |request: Request<Incoming>| {
        let response = respond(&request, guard, pages);
        async move { Ok::<_, Infallible>(response) }
    };
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    server.keep_alive(false).max_buf_size(MAX_HEADER_SIZE).max_headers(MAX_HEADERS);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), hyper::service::service_fn(answer)).await {
        debug!(%error, "connection failed");
    }
}

/// Returns the response to a request, whose body is not read.
fn respond(request: &Request<Incoming>, guard: &Guard, pages: &impl Pages) -> Response<Full<Bytes>> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "expected GET or HEAD\n", ALLOW, "GET, HEAD");
    }
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let is_allowed = || guard.allows(request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes));
    response(match path {
        "/metrics" | STATE | HISTORY if !is_allowed() => {
            return refusal(StatusCode::UNAUTHORIZED, "expected Authorization: Bearer TOKEN\n", WWW_AUTHENTICATE, "Bearer");
        }
        "/metrics" => pages.metrics(),
        "/healthz" => pages.health(),
        STATE | HISTORY if !guard.allows_host(request.headers().get(HOST).map(HeaderValue::as_bytes)) => {
            Page::plain(StatusCode::FORBIDDEN, "expected localhost or an IP address as the host, or --token-file\n")
        }
        STATE => pages.state(query),
        HISTORY => pages.history(query),
        _ => match web::file(path) {
            Some(web::File { content_type, text }) => {
                Page { status: StatusCode::OK, content_type, text: Bytes::from_static(text.as_bytes()) }
            }
            None => Page::plain(StatusCode::NOT_FOUND, "expected /, /metrics or /healthz\n"),
        },
    })
}

/// Returns a response with a header that says what is expected.
fn refusal(status: StatusCode, text: &'static str, name: HeaderName, value: &'static str) -> Response<Full<Bytes>> {
    let mut response = response(Page::plain(status, text));
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

/// Returns a page as a response.
fn response(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(page.text));
    *response.status_mut() = page.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests;
