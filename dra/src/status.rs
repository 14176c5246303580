//! Health and metrics of the plugin, by HTTP.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::connections::Connections;

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 64;
/// Maximum size of a request's headers in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Time for a client to send a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait after a failed `accept`.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Result of the last round of the plugin's loop.
#[derive(Debug)]
struct Round {
    at: Instant,
    devices: usize,
    has_discovered: bool,
    has_published: bool,
}

/// State that the plugin's parts report.
#[derive(Debug)]
pub struct Status {
    /// Time after which a loop without a round counts as stuck.
    stuck_after: Duration,
    /// Last round; `None` before the first.
    last: Mutex<Option<Round>>,
    started: Instant,
    /// Number of prepared claims.
    claims: AtomicU64,
    /// Numbers of failed requests of the kubelet to prepare and to unprepare a claim.
    failures: [AtomicU64; 2],
}

/// Request of the kubelet for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRequest {
    /// Prepare it.
    Prepare,
    /// Unprepare it.
    Unprepare,
}

impl Status {
    /// Returns the state of a plugin that starts now. Its loop is stuck after `stuck_after` without a round.
    #[must_use]
    pub fn new(stuck_after: Duration) -> Self {
        Self { stuck_after, last: Mutex::default(), started: Instant::now(), claims: AtomicU64::new(0), failures: Default::default() }
    }

    /// Reports a round that found this number of devices, with the errors of discovery and publication.
    pub fn round(&self, devices: usize, discovery: Option<&str>, publication: Option<&str>) {
        let round = Round { at: Instant::now(), devices, has_discovered: discovery.is_none(), has_published: publication.is_none() };
        *self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(round);
    }

    /// Reports the number of prepared claims.
    pub fn claims(&self, count: usize) {
        self.claims.store(count as u64, Relaxed);
    }

    /// Reports a failed request of the kubelet.
    pub fn failed(&self, request: ClaimRequest) {
        self.failures[request as usize].fetch_add(1, Relaxed);
    }

    /// Returns true unless the loop is stuck. Neither a silent NVML nor a silent API server is a reason to restart the plugin.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        last.as_ref().map_or(self.started, |round| round.at).elapsed() < self.stuck_after
    }

    /// Returns the metrics in Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, samples: &[(&str, u64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let flag = |has: fn(&Round) -> bool| u64::from(last.as_ref().is_some_and(has));
        metric("vgpu_dra_devices", "gauge", "GPUs and MIG devices found.", &[("", last.as_ref().map_or(0, |round| round.devices as u64))]);
        metric("vgpu_dra_discovered", "gauge", "1 if the GPUs could be discovered last time.", &[("", flag(|round| round.has_discovered))]);
        metric("vgpu_dra_published", "gauge", "1 if the ResourceSlices could be published.", &[("", flag(|round| round.has_published))]);
        metric("vgpu_dra_claims", "gauge", "Claims prepared on this node.", &[("", self.claims.load(Relaxed))]);
        let [prepare, unprepare] = &self.failures;
        metric(
            "vgpu_dra_claim_failures_total",
            "counter",
            "Requests of the kubelet that failed.",
            &[("{request=\"prepare\"}", prepare.load(Relaxed)), ("{request=\"unprepare\"}", unprepare.load(Relaxed))],
        );
        text
    }

    /// Returns the response to a request.
    fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (code, text) = match (request.method(), request.uri().path()) {
            (&Method::GET, "/healthz") if self.is_alive() => (StatusCode::OK, "ok\n".to_owned()),
            (&Method::GET, "/healthz") => (StatusCode::SERVICE_UNAVAILABLE, "the loop is stuck\n".to_owned()),
            (&Method::GET, "/metrics") => (StatusCode::OK, self.metrics()),
            _ => (StatusCode::NOT_FOUND, "expected GET /healthz or /metrics\n".to_owned()),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = code;
        response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; version=0.0.4"));
        response
    }
}

/// Serves health and metrics. Never completes.
pub async fn serve(status: Arc<Status>, listener: TcpListener) {
    let mut connections = Connections::new(MAX_CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        let status = Arc::clone(&status);
        connections.spawn(|entry| async move {
            let service = hyper::service::service_fn(|request| {
                let _busy = entry.busy();
                std::future::ready(Ok::<_, Infallible>(status.respond(&request)))
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEAD_BYTES).keep_alive(false);
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_without_a_round_is_stuck() {
        assert!(Status::new(Duration::from_secs(600)).is_alive());
        let status = Status::new(Duration::ZERO);
        assert!(!status.is_alive());
        status.round(2, None, Some("forbidden"));
        status.failed(ClaimRequest::Unprepare);
        let metrics = status.metrics();
        for line in ["vgpu_dra_devices 2", "vgpu_dra_discovered 1", "vgpu_dra_published 0", "_total{request=\"unprepare\"} 1"] {
            assert!(metrics.contains(line), "{metrics}");
        }
    }
}
