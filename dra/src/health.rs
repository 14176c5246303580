//! Device health for the kubelet, which shows it in the status of the pods that use the devices (`ResourceHealthStatus`, on by default from
//! Kubernetes 1.36).

use std::time::{Duration, SystemTime};

use futures_util::Stream;
use tokio::sync::watch;
use tonic::Status;

use crate::proto::{DeviceHealth, DeviceIdentifier, HealthResponse, HealthStatus};

/// Minimum time for which a report is valid: the kubelet's own default.
const MIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the health report of one device, valid for `timeout` or 30 s, whichever is longer.
#[must_use]
pub fn device_health(pool: &str, device: &str, health: HealthStatus, message: &str, timeout: Duration) -> DeviceHealth {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    DeviceHealth {
        device: Some(DeviceIdentifier { pool_name: pool.to_owned(), device_name: device.to_owned() }),
        health: health.into(),
        last_updated_time: i64::try_from(now.as_secs()).unwrap_or_default(),
        health_check_timeout_seconds: i64::try_from(timeout.max(MIN_TIMEOUT).as_secs()).unwrap_or(i64::MAX),
        message: message.to_owned(),
    }
}

/// Streams the reports of all devices: now, and after each poll even without a change, as reports expire. Ends when the sender is dropped.
pub fn updates(reports: watch::Receiver<Vec<DeviceHealth>>) -> impl Stream<Item = Result<HealthResponse, Status>> + Send + 'static {
    futures_util::stream::unfold((reports, true), |(mut reports, is_first)| async move {
        if !is_first {
            reports.changed().await.ok()?;
        }
        let devices = reports.borrow_and_update().clone();
        Some((Ok(HealthResponse { devices }), (reports, false)))
    })
}
