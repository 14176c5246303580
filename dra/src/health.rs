//! How the node's devices are, for the kubelet: it shows that in the status of the pods that have them (`ResourceHealthStatus`, which
//! Kubernetes has on from 1.36).

use std::time::{Duration, SystemTime};

use futures_util::Stream;
use tokio::sync::watch;
use tonic::Status;

use crate::proto::{DeviceHealth, DeviceIdentifier, HealthResponse, HealthStatus};

/// The shortest time for which the kubelet is to believe what it was told last: its own default.
const MIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How one device is.
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

/// All devices now and again after each look at them, as what is not said again is not believed for ever. It ends with who looks.
pub fn updates(told: watch::Receiver<Vec<DeviceHealth>>) -> impl Stream<Item = Result<HealthResponse, Status>> + Send + 'static {
    futures_util::stream::unfold((told, true), |(mut told, first)| async move {
        if !first {
            told.changed().await.ok()?;
        }
        let devices = told.borrow_and_update().clone();
        Some((Ok(HealthResponse { devices }), (told, false)))
    })
}
