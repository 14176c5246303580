//! The kubelet plugin.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use vgpu_dra::cluster;
use vgpu_dra::gpus::{OfDriver, OfFile, Source};
use vgpu_dra::options::Options;
use vgpu_dra::{devices, disk, service};

fn say(line: &str) {
    eprintln!("vgpu-dra: {line}");
}

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(run(options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
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
    service::run(&options, client, source, Arc::new(disk::Real), say, cluster::told_to_stop()).await
}
