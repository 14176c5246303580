//! HTTPS server of the webhook, with limits for clients that are not the API server.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tracing::error;

use crate::connections::{Connections, Entry};
use crate::webhook::review::Webhook;
use crate::webhook::tls::Tls;

/// Maximum size of a review in bytes: that of a request to the API server.
const MAX_BODY_BYTES: usize = 3 << 20;
/// Maximum size of a request's headers in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of reviews that are in memory at once. A parsed review may take 30 times its size.
const MAX_REVIEWS: usize = 4;
/// Time for a client's TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a client to send a request's headers, and for a connection without a request. The API server closes such connections after
/// 90 s; a connection that the webhook closes first may fail its next review.
const HEADER_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for a request's body and its response: the API server's own timeout in the webhook's configuration.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait after a failed `accept`, for example for lack of file descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// State that all connections share.
struct Server {
    webhook: Webhook,
    /// True if `/mutate` requires a client certificate.
    requires_certificate: bool,
    /// Permits for reviews.
    reviews: Semaphore,
}

impl Server {
    /// Returns the response to a request. `has_certificate` is true if the client has proven its identity.
    async fn handle(&self, request: Request<Incoming>, has_certificate: bool) -> Response<Full<Bytes>> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match (method, path.as_str()) {
            (Method::GET, "/healthz") => reply(StatusCode::OK, "{}".to_owned()),
            (Method::POST, "/mutate") if self.requires_certificate && !has_certificate => {
                refuse(StatusCode::UNAUTHORIZED, "expected a client certificate of --client-ca")
            }
            (Method::POST, "/mutate") => match tokio::time::timeout(REQUEST_TIMEOUT, self.mutate(request.into_body())).await {
                Ok(response) => response,
                Err(_) => refuse(StatusCode::REQUEST_TIMEOUT, "expected the whole request within 10 s"),
            },
            _ => reply(StatusCode::NOT_FOUND, "{}".to_owned()),
        }
    }

    /// Returns the response to the review in `body`.
    async fn mutate(&self, body: Incoming) -> Response<Full<Bytes>> {
        let Ok(body) = Limited::new(body, MAX_BODY_BYTES).collect().await else {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "expected at most 3 MiB");
        };
        // Never closed.
        let Ok(_permit) = self.reviews.acquire().await else { return refuse(StatusCode::SERVICE_UNAVAILABLE, "shutting down") };
        let Ok(review) = serde_json::from_slice::<Value>(&body.to_bytes()) else { return refuse(StatusCode::BAD_REQUEST, "expected JSON") };
        match self.webhook.review(&review).await {
            Ok(response) => reply(StatusCode::OK, response.to_string()),
            Err(error) => refuse(StatusCode::BAD_REQUEST, error),
        }
    }

    /// Serves a connection until either side closes it.
    async fn serve_connection(self: Arc<Self>, acceptor: TlsAcceptor, stream: TcpStream, entry: Arc<Entry>) {
        let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else { return };
        // The handshake has verified it.
        let has_certificate = stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
        let service = hyper::service::service_fn(move |request| {
            let (server, entry) = (Arc::clone(&self), Arc::clone(&entry));
            async move {
                let _busy = entry.busy();
                Ok::<_, Infallible>(server.handle(request, has_certificate).await)
            }
        });
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
    }
}

/// Returns a response with an error.
fn refuse(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    reply(status, json!({ "error": error }).to_string())
}

/// Returns a response with this content.
fn reply(status: StatusCode, json: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(json)));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// Serves connections until `stop` completes.
pub async fn serve(webhook: Webhook, listener: TcpListener, mut tls: Tls, stop: impl Future<Output = ()>) {
    let server = Arc::new(Server { webhook, requires_certificate: tls.verifies_clients(), reviews: Semaphore::new(MAX_REVIEWS) });
    let mut connections = Connections::new(MAX_CONNECTIONS);
    let accept = async {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            };
            match tls.acceptor() {
                Ok(acceptor) => connections.spawn(|entry| Arc::clone(&server).serve_connection(acceptor, stream, entry)),
                Err(error) => error!(error, "cannot load the certificate"),
            }
        }
    };
    tokio::select! { () = accept => {}, () = stop => {} }
}
