//! The kubelet plugin.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use vgpu_dra::discovery::{OfDriver, OfFile, Source};
use vgpu_dra::options::Options;
use vgpu_dra::{cluster, daemon};
use vgpu_dra::{devices, service, storage};

const NAME: &str = "vgpu-dra";

fn main() -> ExitCode {
    vgpu_dra::daemon::main(NAME, run(Options::parse()))
}

async fn run(options: Options) -> Result<(), String> {
    let source: Arc<dyn Source> = match &options.inventory {
        Some(file) => Arc::new(OfFile(file.clone())),
        None => Arc::new(OfDriver { sysfs: options.sysfs.clone() }),
    };
    if options.show {
        let devices: Vec<_> = devices::of(&source.look()?).into_values().map(|(_, device)| device).collect();
        println!("{}", serde_json::to_string_pretty(&devices).map_err(|error| error.to_string())?);
        return Ok(());
    }
    let client = cluster::client(options.kubeconfig.as_deref()).await?;
    service::run(&options, client, source, Arc::new(storage::Real), |line| vgpu_dra::daemon::say(NAME, line), daemon::told_to_stop()).await
}
