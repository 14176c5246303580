//! The plugin under test, in this process or as a program.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use clap::Parser;
use serde_json::{Value, json};
use tempfile::TempDir;
use vgpu_dra::discovery::GpuSource;
use vgpu_dra::options::Options;
use vgpu_dra::storage::{LocalStorage, Storage};
use vgpu_dra::{names::DRIVER, service};

use super::api_server::{Cluster, NODE, claim_path};
use super::gpus::{Gpus, device};
use super::kubelet::uid;

/// Directories of a node.
pub struct Node(TempDir);

impl Default for Node {
    fn default() -> Self {
        Self(TempDir::with_prefix("vgpu-node-").unwrap())
    }
}

impl Node {
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the plugin's arguments on this node.
    pub fn arguments(&self, state_dir: &Path) -> Vec<String> {
        let folders = [
            ("--registry", self.path("registry")),
            ("--plugin", self.path("plugin")),
            ("--cdi", self.path("cdi")),
            ("--state-dir", state_dir.to_owned()),
        ];
        let mut all: Vec<String> = ["--node", NODE, "--every", "1"].map(str::to_owned).into();
        all.extend(folders.iter().flat_map(|(flag, folder)| [flag.to_string(), folder.display().to_string()]));
        all
    }

    /// Returns the plugin's options on this node.
    pub fn options(&self, more: &[&str]) -> Options {
        let arguments = self.arguments(&self.path("state"));
        Options::parse_from(["vgpu-dra"].into_iter().chain(arguments.iter().map(String::as_str)).chain(more.iter().copied()))
    }

    /// Returns the names of all files of claims, sorted.
    pub fn files(&self) -> Vec<String> {
        let folders = [self.path("cdi"), self.path("state/claims")];
        let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// Plugin in a thread of this process. Dropping it stops it.
pub struct Threaded {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<(), String>>>,
}

impl Threaded {
    pub fn start(node: &Node, cluster: &Cluster, source: impl GpuSource + 'static) -> Self {
        Self::start_with(node.options(&[]), cluster, source, Arc::new(LocalStorage))
    }

    pub fn start_with(options: Options, cluster: &Cluster, source: impl GpuSource + 'static, storage: Arc<dyn Storage>) -> Self {
        // Fails for the second plugin of a process, whose log the subscriber of the first receives.
        let _ = vgpu_logging::init(&options.log);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let config = kube::Config::new(format!("http://{}", cluster.address).parse().unwrap());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let client = kube::Client::try_from(config).unwrap();
                let stop = async { drop(stopped.await) };
                service::run(&options, client, Arc::new(source), storage, stop).await
            })
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.expect("the plugin must not panic").expect("the plugin must end without an error");
        }
    }
}

/// Plugin as a program. Dropping it kills it.
pub struct Program(pub Child);

impl Program {
    pub fn start(node: &Node, cluster: &Cluster, state_dir: &Path, more: &[&str], environment: &[(&str, &str)]) -> Self {
        Self(Self::command(node, cluster, state_dir, more).envs(environment.iter().copied()).spawn().unwrap())
    }

    /// Starts the program with its standard error in a file.
    pub fn start_logging(node: &Node, cluster: &Cluster, more: &[&str], stderr: &Path) -> Self {
        let inventory = node.path("gpus.json");
        std::fs::write(&inventory, serde_json::to_vec(&Gpus::with([0]).discover().unwrap()).unwrap()).unwrap();
        let mut command = Self::command(node, cluster, &node.path("state"), more);
        command.arg("--inventory").arg(inventory).env_remove("VGPU_LOG").env_remove("RUST_LOG");
        Self(command.stderr(std::fs::File::create(stderr).unwrap()).spawn().unwrap())
    }

    fn command(node: &Node, cluster: &Cluster, state_dir: &Path, more: &[&str]) -> Command {
        let kubeconfig = node.path("kubeconfig");
        std::fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-dra"));
        command.args(node.arguments(state_dir)).args(more).arg("--kubeconfig").arg(kubeconfig).stdin(Stdio::null());
        command
    }

    /// Kills the program by SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Result of an allocation: request, number of the GPU, memory, cores.
pub type AllocationResult<'a> = (&'a str, usize, &'a str, &'a str);

/// Creates an allocated claim in the cluster, as the scheduler would.
pub fn allocate(cluster: &Cluster, name: &str, results: &[AllocationResult<'_>]) {
    let results: Vec<Value> = results
        .iter()
        .enumerate()
        .map(|(index, &(request, gpu, memory, cores))| {
            json!({
                "request": request, "driver": DRIVER, "pool": NODE, "device": device(gpu), "shareID": format!("{}-{index}", uid(name)),
                "consumedCapacity": { "memory": memory, "cores": cores },
            })
        })
        .collect();
    cluster.put(
        &claim_path(name),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": name, "namespace": "team", "uid": uid(name) },
            "spec": { "devices": { "requests": [] } },
            "status": { "allocation": { "devices": { "results": results } }, "reservedFor": [{ "resource": "pods", "name": "p", "uid": "pod-uid" }] },
        }),
    );
}

/// Returns the CDI devices of a prepared claim, or of one of its requests.
pub fn cdi_ids(devices: &[vgpu_dra::proto::Device], request: Option<&str>) -> Vec<String> {
    let wanted = |device: &&vgpu_dra::proto::Device| request.is_none_or(|request| device.request_names.iter().any(|name| name == request));
    devices.iter().filter(wanted).flat_map(|device| device.cdi_device_ids.clone()).collect()
}
