//! What network peers send to the monitor's HTTP server.

use std::cell::RefCell;

use hyper::StatusCode;
use tokio::runtime::{Builder, Runtime};
use vgpu_monitor::http::{Credentials, Guard, Page, Pages, answer};

/// Token of the metrics.
const TOKEN: &str = "0123456789abcdef";
/// The metrics.
const METRICS: &str = "secret 1\n";
/// Statuses that the server and hyper answer with.
const STATUSES: [&str; 8] = ["200", "400", "401", "404", "405", "414", "431", "505"];

/// Pages of a monitor that requires the token.
struct Fixed(Guard);

impl Pages for Fixed {
    fn guard(&self) -> Guard {
        self.0.clone()
    }

    fn metrics(&self) -> Page {
        Page::plain(StatusCode::OK, METRICS)
    }

    fn health(&self) -> Page {
        Page::plain(StatusCode::OK, "ok\n")
    }

    fn state(&self, _query: &str) -> Page {
        Page::plain(StatusCode::OK, METRICS)
    }

    fn history(&self, _query: &str) -> Page {
        Page::plain(StatusCode::OK, METRICS)
    }
}

/// Answers the request of a client. Asserts that there is one well-formed answer, and that the metrics need the token.
pub fn http(data: &[u8]) {
    thread_local! {
        static SERVER: RefCell<(Runtime, Fixed)> = RefCell::new({
            let credentials = serde_json::json!({ "tls": null, "token": TOKEN });
            let credentials: Credentials = serde_json::from_value(credentials).expect("credentials");
            let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
            (runtime, Fixed(credentials.guard().expect("no certificate")))
        });
    }
    let mut response = Vec::new();
    SERVER.with_borrow(|(runtime, pages)| {
        let client = tokio::io::join(data, &mut response);
        runtime.block_on(answer(client, &pages.0, pages));
    });
    if response.is_empty() {
        return;
    }
    let text = String::from_utf8_lossy(&response);
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)).unwrap_or_default();
    assert!(STATUSES.contains(&status) && text.contains("\r\n\r\n"), "{text:?}");
    assert_eq!(text.matches("HTTP/1.").count(), 1, "{text:?}");
    let has_token = data.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes());
    assert!(has_token || !text.contains(METRICS), "the metrics were told without the token: {text:?}");
}
