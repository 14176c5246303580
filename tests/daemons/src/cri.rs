//! Minimal CRI client: gRPC calls of the Container Runtime Interface over a Unix socket, enough to run a pod as a kubelet does.

mod messages;

use bytes::{Bytes, BytesMut};
use messages as m;
use prost::Message;
use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// CRI client.
#[derive(Debug)]
pub struct Cri {
    socket: PathBuf,
}

/// Running pod in the host's network, removed on drop.
#[derive(Debug)]
pub struct Pod<'a> {
    cri: &'a Cri,
    config: m::PodSandboxConfig,
    id: String,
}

impl Cri {
    /// Creates a client of the runtime at `socket`.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Runs a pod sandbox with a runtime handler.
    pub fn pod(&self, name: &str, handler: &str, annotations: &[(&str, &str)]) -> Result<Pod<'_>> {
        let config = m::PodSandboxConfig {
            metadata: Some(m::PodSandboxMetadata { name: name.into(), uid: name.into(), namespace: "default".into(), attempt: 0 }),
            annotations: map(annotations),
            linux: Some(m::LinuxPodSandboxConfig {
                security_context: Some(m::LinuxSandboxSecurityContext { namespace_options: Some(HOST_NETWORK) }),
            }),
        };
        let request = m::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.into() };
        let answer: m::RunPodSandboxResponse = self.call("RunPodSandbox", &request)?;
        Ok(Pod { cri: self, config, id: answer.pod_sandbox_id })
    }

    /// Waits until the CRI plugin has noticed an image that was imported into containerd. Until then it would pull the image.
    pub fn wait_for_image(&self, image: &str) -> Result<()> {
        let request = m::ImageStatusRequest { image: Some(m::ImageSpec { image: image.into() }) };
        for _ in 0..1000 {
            let answer: m::ImageStatusResponse = self.call_service("ImageService", "ImageStatus", &request)?;
            if answer.image.is_some() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Err(format!("{image}: not found").into())
    }

    fn call<A: Message + Default>(&self, method: &str, request: &impl Message) -> Result<A> {
        self.call_service("RuntimeService", method, request)
    }

    fn call_service<A: Message + Default>(&self, service: &str, method: &str, request: &impl Message) -> Result<A> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let answer = runtime.block_on(call(&self.socket, &format!("runtime.v1.{service}/{method}"), &request.encode_to_vec()));
        Ok(A::decode(answer.map_err(|error| format!("{method}: {error}"))?)?)
    }
}

impl Pod<'_> {
    /// Starts a container in this pod and returns its id.
    pub fn start(&self, name: &str, image: &str, annotations: &[(&str, &str)], command: &[&str]) -> Result<String> {
        let config = m::ContainerConfig {
            metadata: Some(m::ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(m::ImageSpec { image: image.into() }),
            command: command.iter().map(|&word| word.into()).collect(),
            annotations: map(annotations),
            linux: Some(m::LinuxContainerConfig {
                security_context: Some(m::LinuxContainerSecurityContext { namespace_options: Some(HOST_NETWORK) }),
            }),
        };
        let request =
            m::CreateContainerRequest { pod_sandbox_id: self.id.clone(), config: Some(config), sandbox_config: Some(self.config.clone()) };
        let answer: m::CreateContainerResponse = self.cri.call("CreateContainer", &request)?;
        let id = answer.container_id;
        self.cri.call::<()>("StartContainer", &m::StartContainerRequest { container_id: id.clone() })?;
        Ok(id)
    }

    /// Runs a command in a container, as `kubectl exec` does. Returns its standard output.
    pub fn exec(&self, container: &str, command: &[&str]) -> Result<String> {
        let request =
            m::ExecSyncRequest { container_id: container.into(), cmd: command.iter().map(|&word| word.into()).collect(), timeout: 60 };
        let answer: m::ExecSyncResponse = self.cri.call("ExecSync", &request)?;
        Ok(String::from_utf8(answer.stdout)?)
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let id = m::PodSandboxId { pod_sandbox_id: self.id.clone() };
        for method in ["StopPodSandbox", "RemovePodSandbox"] {
            if let Err(error) = self.cri.call::<()>(method, &id) {
                eprintln!("{error}");
            }
        }
    }
}

const HOST_NETWORK: m::NamespaceOption = m::NamespaceOption { network: m::NODE, pid: m::CONTAINER, ipc: m::POD };

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect()
}

/// Makes one unary call (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).
async fn call(socket: &Path, method: &str, message: &[u8]) -> Result<Bytes> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    let (client, connection) = h2::client::handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::post(format!("http://localhost/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (answer, mut body) = client.ready().await?.send_request(request, false)?;
    // Frame header: not compressed, message length.
    let mut framed = BytesMut::from(&[0][..]);
    framed.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
    framed.extend_from_slice(message);
    body.send_data(framed.freeze(), true)?;

    let answer = answer.await?;
    let early = answer.headers().clone();
    let mut body = answer.into_body();
    let mut whole = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        whole.extend_from_slice(&part);
    }
    let trailers = body.trailers().await?.unwrap_or(early);
    connection.abort();
    let header = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    match header("grpc-status").as_str() {
        "0" if whole.len() >= 5 => Ok(whole.freeze().slice(5..)),
        status => Err(format!("status {status}, {}", header("grpc-message")).into()),
    }
}
