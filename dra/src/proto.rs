//! Messages of the kubelet's gRPC services: plugin registration v1, DRA v1 and v1beta1 (identical), and DRA health v1alpha1.

use std::collections::HashMap;

/// Description of a plugin.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    /// Type of the plugin: `DRAPlugin`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Name of the driver.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Path of the socket that serves the plugin's services.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// Services on that socket.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// Result of a registration.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatus {
    /// True if the plugin is registered.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Reason why it is not; empty if it is.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Request or response without contents.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// Reference to a claim.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Claim {
    /// Namespace of the claim.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// UID of the claim.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Name of the claim.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Claims to prepare or to unprepare (`NodePrepareResourcesRequest`, `NodeUnprepareResourcesRequest`).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ClaimsRequest {
    /// Claims to act on.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// Prepared device of a claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// Requests of the claim that the device satisfies.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// Pool of the device.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// Name of the device in its pool.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// CDI devices that the container runtime applies.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// ID of the share, unique among the shares of the device.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// Result of preparing one claim (`NodePrepareResourceResponse`).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreparedClaim {
    /// Devices of the claim.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Reason why the claim is not prepared; empty if it is.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Results of preparing claims (`NodePrepareResourcesResponse`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareResponse {
    /// Results by claim UID.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PreparedClaim>,
}

/// Result of unpreparing one claim (`NodeUnprepareResourceResponse`).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnpreparedClaim {
    /// Reason why the claim is still prepared; empty if it is not.
    #[prost(string, tag = "1")]
    pub error: String,
}

/// Results of unpreparing claims (`NodeUnprepareResourcesResponse`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareResponse {
    /// Results by claim UID.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnpreparedClaim>,
}

/// Health of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum HealthStatus {
    /// Unknown, for example because the driver does not answer.
    Unknown = 0,
    /// Working.
    Healthy = 1,
    /// Not working or gone.
    Unhealthy = 2,
}

/// Reference to a device.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct DeviceIdentifier {
    /// Pool of the device.
    #[prost(string, tag = "1")]
    pub pool_name: String,
    /// Name of the device in its pool.
    #[prost(string, tag = "2")]
    pub device_name: String,
}

/// Health report of one device.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct DeviceHealth {
    /// Device that is reported on.
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// Health, as a [`HealthStatus`].
    #[prost(enumeration = "HealthStatus", tag = "2")]
    pub health: i32,
    /// Time of the report, in seconds since 1970.
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// Seconds for which the report is valid.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    /// Explanation for the pod's status; may be empty.
    #[prost(string, tag = "5")]
    pub message: String,
}

/// Health reports of all devices of the driver (`NodeWatchResourcesResponse`).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HealthResponse {
    /// One report for each device.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}
