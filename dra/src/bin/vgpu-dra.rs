//! The kubelet plugin.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use vgpu_dra::discovery::{FileSource, GpuSource, NvmlSource};
use vgpu_dra::options::Options;
use vgpu_dra::storage::LocalStorage;
use vgpu_dra::{cluster, daemon, devices, service};

fn main() -> ExitCode {
    let options = Options::parse();
    daemon::main(&options.log.clone(), run(options))
}

async fn run(options: Options) -> Result<(), String> {
    let source: Arc<dyn GpuSource> = match &options.inventory {
        Some(file) => Arc::new(FileSource(file.clone())),
        None => Arc::new(NvmlSource { sysfs: options.sysfs.clone() }),
    };
    if options.show {
        let devices: Vec<_> = devices::of_machine(&source.discover()?).into_values().map(|(_, device)| device).collect();
        println!("{}", serde_json::to_string_pretty(&devices).map_err(|error| error.to_string())?);
        return Ok(());
    }
    let client = cluster::client(options.kubeconfig.as_deref()).await?;
    service::run(&options, client, source, Arc::new(LocalStorage), daemon::shutdown_signal()).await
}
