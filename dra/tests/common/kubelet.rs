//! Stand-in for the kubelet.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use vgpu_dra::proto::{
    Claim, ClaimsRequest, Device, DeviceHealth, Empty, HealthResponse, HealthStatus, PluginInfo, PrepareResponse, RegistrationStatus,
    UnprepareResponse,
};

use super::api_server::NODE;
use super::wait_for;

/// Kubelet with one registered plugin.
pub struct Kubelet {
    /// Runtime of the kubelet's thread.
    runtime: tokio::runtime::Handle,
    _stop: tokio::sync::oneshot::Sender<()>,
    endpoint: PathBuf,
    /// The plugin's description of itself.
    pub info: PluginInfo,
    /// The plugin's last health reports.
    health: Arc<Mutex<Vec<DeviceHealth>>>,
}

async fn call<Q, A>(socket: &Path, method: &'static str, message: Q) -> Result<A, Status>
where
    Q: prost::Message + Default + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let response =
        client(socket).await?.unary(Request::new(message), PathAndQuery::from_static(method), ProstCodec::<Q, A>::default()).await?;
    Ok(response.into_inner())
}

async fn client(socket: &Path) -> Result<Grpc<Channel>, Status> {
    let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(unavailable)?;
    let origin = format!("http://{}", authority(socket)).parse().map_err(|error| Status::unavailable(format!("{socket:?}: {error}")))?;
    let mut client = Grpc::new(endpoint.origin(origin).connect().await.map_err(unavailable)?);
    client.ready().await.map_err(unavailable)?;
    Ok(client)
}

/// Returns the authority that gRPC for Go sends. For sockets in the registry, which the kubelet dials by their bare paths, it is the path,
/// percent-encoded where an authority requires it.
fn authority(socket: &Path) -> String {
    if socket.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dra")) {
        return "localhost".to_owned();
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte);
    let bytes = socket.to_str().unwrap().bytes();
    bytes.map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Receives health reports until the plugin ends.
async fn watch_health(socket: PathBuf, reports: Arc<Mutex<Vec<DeviceHealth>>>) -> Result<(), Status> {
    let method = PathAndQuery::from_static("/v1alpha1.DRAResourceHealth/NodeWatchResources");
    let codec = ProstCodec::<Empty, HealthResponse>::default();
    let mut updates = client(&socket).await?.server_streaming(Request::new(Empty {}), method, codec).await?.into_inner();
    while let Some(update) = updates.message().await? {
        *reports.lock().unwrap() = update.devices;
    }
    Ok(())
}

impl Kubelet {
    /// Discovers the plugin's socket in the registry, and registers the plugin.
    pub fn register(registry: &Path) -> Self {
        Self::register_instance(registry, "")
    }

    /// Discovers the socket of the instance with this name, and registers it.
    pub fn register_instance(registry: &Path, instance: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (socket, info) = wait_for("a plugin", || {
            let socket = std::fs::read_dir(registry)
                .ok()?
                .flatten()
                .map(|entry| entry.path())
                .find(|path| path.extension().is_some_and(|end| end == "sock") && path.to_string_lossy().contains(instance))?;
            let info: PluginInfo = runtime.block_on(call(&socket, "/pluginregistration.Registration/GetInfo", Empty {})).ok()?;
            Some((socket, info))
        });
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        let _: Empty = runtime.block_on(call(&socket, "/pluginregistration.Registration/NotifyRegistrationStatus", status)).unwrap();
        let (endpoint, health) = (PathBuf::from(&info.endpoint), Arc::default());
        let watching = watch_health(endpoint.clone(), Arc::clone(&health));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                let _ = tokio::join!(watching, stopped);
            });
        });
        Self { runtime: handle, _stop: stop, endpoint, info, health }
    }

    /// Returns a device's last health and message, as in the status of pods that use it.
    pub fn health(&self, device: &str) -> Option<(HealthStatus, String)> {
        let all = self.health.lock().unwrap();
        let report = all.iter().find(|report| report.device.as_ref().is_some_and(|id| id.pool_name == NODE && id.device_name == device))?;
        Some((report.health(), report.message.clone()))
    }

    fn claims(name: &str) -> ClaimsRequest {
        ClaimsRequest { claims: vec![claim(name)] }
    }

    /// Prepares a claim.
    pub fn prepare(&self, name: &str) -> Result<Vec<Device>, String> {
        self.prepare_by("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", name)
    }

    /// Prepares a claim by this gRPC method.
    pub fn prepare_by(&self, method: &'static str, name: &str) -> Result<Vec<Device>, String> {
        let response: PrepareResponse =
            self.runtime.block_on(call(&self.endpoint, method, Self::claims(name))).map_err(|status| status.message().to_owned())?;
        let prepared = response.claims[&uid(name)].clone();
        if prepared.error.is_empty() { Ok(prepared.devices) } else { Err(prepared.error) }
    }

    /// Unprepares a claim.
    pub fn unprepare(&self, name: &str) -> Result<(), String> {
        let method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
        let response: UnprepareResponse =
            self.runtime.block_on(call(&self.endpoint, method, Self::claims(name))).map_err(|status| status.message().to_owned())?;
        let error = response.claims[&uid(name)].error.clone();
        if error.is_empty() { Ok(()) } else { Err(error) }
    }
}

/// Returns the kubelet's reference to a claim.
pub fn claim(name: &str) -> Claim {
    Claim { namespace: "team".to_owned(), uid: uid(name), name: name.to_owned() }
}

/// Returns the UID of a claim by its name.
pub fn uid(name: &str) -> String {
    format!("0a000000-0000-4000-8000-{:0>12}", name.bytes().map(|byte| format!("{byte:x}")).collect::<String>())
}
