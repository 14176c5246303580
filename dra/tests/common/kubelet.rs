//! A kubelet, as far as plugins see one.

use std::path::{Path, PathBuf};

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use vgpu_dra::proto::{Claim, Claims, Device, Empty, PluginInfo, Prepared, RegistrationStatus, Unprepared};

use super::wait_for;

/// A kubelet to which one plugin has registered.
pub struct Kubelet {
    runtime: tokio::runtime::Runtime,
    endpoint: PathBuf,
    /// What the plugin said of itself.
    pub info: PluginInfo,
}

async fn call<Q, A>(socket: &Path, method: &'static str, message: Q) -> Result<A, Status>
where
    Q: prost::Message + Default + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(unavailable)?;
    let channel: Channel = endpoint.connect().await.map_err(unavailable)?;
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(unavailable)?;
    let answer = client.unary(Request::new(message), PathAndQuery::from_static(method), ProstCodec::<Q, A>::default()).await?;
    Ok(answer.into_inner())
}

impl Kubelet {
    /// Finds the plugin by its socket among those of all plugins, and registers it.
    pub fn register(registry: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (socket, info) = wait_for("a plugin", || {
            let socket = std::fs::read_dir(registry)
                .ok()?
                .flatten()
                .map(|entry| entry.path())
                .find(|path| path.extension().is_some_and(|end| end == "sock"))?;
            let info: PluginInfo = runtime.block_on(call(&socket, "/pluginregistration.Registration/GetInfo", Empty {})).ok()?;
            Some((socket, info))
        });
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        let _: Empty = runtime.block_on(call(&socket, "/pluginregistration.Registration/NotifyRegistrationStatus", status)).unwrap();
        Self { runtime, endpoint: PathBuf::from(&info.endpoint), info }
    }

    fn claims(name: &str) -> Claims {
        Claims { claims: vec![claim(name)] }
    }

    /// Has a claim prepared.
    pub fn prepare(&self, name: &str) -> Result<Vec<Device>, String> {
        self.prepare_by("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", name)
    }

    /// Has a claim prepared by this method.
    pub fn prepare_by(&self, method: &'static str, name: &str) -> Result<Vec<Device>, String> {
        let answer: Prepared =
            self.runtime.block_on(call(&self.endpoint, method, Self::claims(name))).map_err(|status| status.message().to_owned())?;
        let prepared = answer.claims[&uid(name)].clone();
        if prepared.error.is_empty() { Ok(prepared.devices) } else { Err(prepared.error) }
    }

    /// Has what was prepared for a claim undone.
    pub fn unprepare(&self, name: &str) -> Result<(), String> {
        let method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
        let answer: Unprepared =
            self.runtime.block_on(call(&self.endpoint, method, Self::claims(name))).map_err(|status| status.message().to_owned())?;
        let error = answer.claims[&uid(name)].error.clone();
        if error.is_empty() { Ok(()) } else { Err(error) }
    }
}

/// How the kubelet names a claim.
pub fn claim(name: &str) -> Claim {
    Claim { namespace: "team".to_owned(), uid: uid(name), name: name.to_owned() }
}

/// The UID of the claim of this name.
pub fn uid(name: &str) -> String {
    format!("0a000000-0000-4000-8000-{:0>12}", name.bytes().map(|byte| format!("{byte:x}")).collect::<String>())
}
