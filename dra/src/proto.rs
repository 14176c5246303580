//! The kubelet's messages: plugin registration v1, DRA v1 and v1beta1, whose messages are the same, and DRA's health v1alpha1.

use std::collections::HashMap;

/// What a plugin says of itself.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    /// `DRAPlugin` for us.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// The driver's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The socket where it serves.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// The services that it serves there.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// How a registration went.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatus {
    /// Whether the plugin is registered.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A question or an answer without contents.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// Names a claim.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Claim {
    /// Its namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its UID.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// ClaimsRequest to be prepared, or the reverse.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ClaimsRequest {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// A device that a container gets.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// The requests of the claim that it answers.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// Its pool.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// Its name there.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// What the container runtime is to apply.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// What tells it from other shares of the device.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// One prepared claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreparedClaim {
    /// Its devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Why it could not be prepared; empty if it is.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// The prepared claims.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareResponse {
    /// By UID.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PreparedClaim>,
}

/// One claim that is no longer prepared.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnpreparedClaim {
    /// Why it still is; empty if it is not.
    #[prost(string, tag = "1")]
    pub error: String,
}

/// The claims that are no longer prepared.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareResponse {
    /// By UID.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnpreparedClaim>,
}

/// How a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum HealthStatus {
    /// That cannot be told.
    Unknown = 0,
    /// It works.
    Healthy = 1,
    /// It does not.
    Unhealthy = 2,
}

/// Names a device.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct DeviceIdentifier {
    /// Its pool.
    #[prost(string, tag = "1")]
    pub pool_name: String,
    /// Its name there.
    #[prost(string, tag = "2")]
    pub device_name: String,
}

/// One device and how it is.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct DeviceHealth {
    /// The device.
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// How it is.
    #[prost(enumeration = "HealthStatus", tag = "2")]
    pub health: i32,
    /// When that was found out, in seconds since 1970.
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// For how many seconds that is to be believed.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    /// What there is to be said about it.
    #[prost(string, tag = "5")]
    pub message: String,
}

/// All of the driver's devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HealthResponse {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}
