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

/// What a pod is made from.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodTemplate<'a> {
    /// Its name, which is its UID, too.
    pub name: &'a str,
    /// Its namespace; `default` if empty.
    pub namespace: &'a str,
    /// The runtime handler; the default one if empty.
    pub handler: &'a str,
    /// Its annotations.
    pub annotations: &'a [(&'a str, &'a str)],
    /// Whether its containers share their processes, which needs a sandbox with a process.
    pub shares_processes: bool,
}

/// What a container is made from.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContainerTemplate<'a> {
    /// Its name in its pod.
    pub name: &'a str,
    /// How many containers of this name the pod has had.
    pub attempt: u32,
    /// Its image.
    pub image: &'a str,
    /// Its own annotations. A kubelet sets those of device plugins, and none of the pod's author.
    pub annotations: &'a [(&'a str, &'a str)],
    /// Its environment.
    pub environment: &'a [(&'a str, &'a str)],
    /// Files and folders of the host, each with its path in the container.
    pub mounts: &'a [(&'a Path, &'a str)],
    /// Its command.
    pub command: &'a [&'a str],
}

impl Cri {
    /// Creates a client of the runtime at `socket`.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Returns the name and the version of the runtime.
    pub fn version(&self) -> Result<String> {
        let answer: m::VersionResponse = self.call("Version", &())?;
        Ok(format!("{} {}", answer.runtime_name, answer.runtime_version))
    }

    /// Runs a pod sandbox with a runtime handler.
    pub fn pod(&self, name: &str, handler: &str, annotations: &[(&str, &str)]) -> Result<Pod<'_>> {
        self.run_pod(&PodTemplate { name, handler, annotations, ..PodTemplate::default() })
    }

    /// Runs a pod sandbox.
    pub fn run_pod(&self, pod: &PodTemplate<'_>) -> Result<Pod<'_>> {
        let name = pod.name;
        let namespace = if pod.namespace.is_empty() { "default" } else { pod.namespace };
        let namespaces = m::NamespaceOption { pid: if pod.shares_processes { m::POD } else { m::CONTAINER }, ..NAMESPACES };
        let config = m::PodSandboxConfig {
            metadata: Some(m::PodSandboxMetadata { name: name.into(), uid: name.into(), namespace: namespace.into(), attempt: 0 }),
            labels: map(&[("io.kubernetes.pod.name", name), ("io.kubernetes.pod.namespace", namespace), ("io.kubernetes.pod.uid", name)]),
            annotations: map(pod.annotations),
            linux: Some(m::LinuxPodSandboxConfig {
                security_context: Some(m::LinuxSandboxSecurityContext { namespace_options: Some(namespaces) }),
            }),
        };
        let request = m::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: pod.handler.into() };
        let answer: m::RunPodSandboxResponse = self.call("RunPodSandbox", &request)?;
        Ok(Pod { cri: self, config, id: answer.pod_sandbox_id })
    }

    /// Waits until the CRI plugin has noticed an image that was imported into containerd. Until then it would pull the image.
    pub fn wait_for_image(&self, image: &str) -> Result<()> {
        let request = m::ImageStatusRequest { image: Some(m::ImageSpec { image: image.into(), ..m::ImageSpec::default() }) };
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
    /// Returns the id of its sandbox.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Starts a container in this pod and returns its id.
    pub fn start(&self, name: &str, image: &str, annotations: &[(&str, &str)], command: &[&str]) -> Result<String> {
        self.run(&ContainerTemplate { name, image, annotations, command, ..ContainerTemplate::default() })
    }

    /// Starts a container in this pod and returns its id.
    pub fn run(&self, container: &ContainerTemplate<'_>) -> Result<String> {
        let image = container.image;
        let sandbox = self.config.linux.and_then(|linux| linux.security_context).and_then(|context| context.namespace_options);
        let mut labels = self.config.labels.clone();
        labels.insert("io.kubernetes.container.name".into(), container.name.into());
        let config = m::ContainerConfig {
            metadata: Some(m::ContainerMetadata { name: container.name.into(), attempt: container.attempt }),
            image: Some(m::ImageSpec { image: image.into(), user_specified_image: image.into() }),
            command: container.command.iter().map(|&word| word.into()).collect(),
            envs: container.environment.iter().map(|&(key, value)| m::KeyValue { key: key.into(), value: value.into() }).collect(),
            mounts: container.mounts.iter().map(|&(from, to)| mount(from, to)).collect(),
            labels,
            annotations: map(container.annotations),
            linux: Some(m::LinuxContainerConfig {
                security_context: Some(m::LinuxContainerSecurityContext { namespace_options: sandbox }),
            }),
        };
        let request =
            m::CreateContainerRequest { pod_sandbox_id: self.id.clone(), config: Some(config), sandbox_config: Some(self.config.clone()) };
        let answer: m::CreateContainerResponse = self.cri.call("CreateContainer", &request)?;
        let id = answer.container_id;
        self.cri.call::<()>("StartContainer", &container_id(&id))?;
        Ok(id)
    }

    /// Runs a command in a container, as `kubectl exec` does. Returns its standard output.
    pub fn exec(&self, container: &str, command: &[&str]) -> Result<String> {
        let request =
            m::ExecSyncRequest { container_id: container.into(), cmd: command.iter().map(|&word| word.into()).collect(), timeout: 60 };
        let answer: m::ExecSyncResponse = self.cri.call("ExecSync", &request)?;
        Ok(String::from_utf8(answer.stdout)?)
    }

    /// Returns the exit status of a container. `None` while it runs.
    pub fn exit_status(&self, container: &str) -> Result<Option<i32>> {
        let answer: m::ContainerStatusResponse = self.cri.call("ContainerStatus", &container_id(container))?;
        Ok(answer.status.filter(|status| status.state == m::EXITED).map(|status| status.exit_code))
    }

    /// Kills a container and removes it.
    pub fn remove(&self, container: &str) -> Result<()> {
        self.cri.call::<()>("StopContainer", &m::StopContainerRequest { container_id: container.into(), timeout: 0 })?;
        self.cri.call("RemoveContainer", &container_id(container))
    }

    /// Stops and removes the pod. Dropping it does the same and passes over errors.
    pub fn end(&self) -> Result<()> {
        let id = m::PodSandboxId { pod_sandbox_id: self.id.clone() };
        ["StopPodSandbox", "RemovePodSandbox"].into_iter().try_for_each(|method| self.cri.call::<()>(method, &id))
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error}");
        }
    }
}

/// In the host's network; a pod whose sandbox has no process.
const NAMESPACES: m::NamespaceOption = m::NamespaceOption { network: m::NODE, pid: m::CONTAINER, ipc: m::POD };

fn container_id(id: &str) -> m::ContainerId {
    m::ContainerId { container_id: id.into() }
}

/// Returns a mount. The host's file may change in the container only if it is a device, as the one of a simulated GPU.
fn mount(from: &Path, to: &str) -> m::Mount {
    m::Mount { container_path: to.into(), host_path: from.to_string_lossy().into_owned(), readonly: !to.starts_with("/dev") }
}

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
