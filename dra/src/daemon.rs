//! Start and end of both programs: logging, exit code and signals.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

/// Sets up logging, runs a program to its end and returns its exit code. An error is logged.
pub fn main(log: &vgpu_logging::Options, program: impl Future<Output = Result<(), String>>) -> ExitCode {
    if let Err(error) = vgpu_logging::init(log) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        let ended = runtime.block_on(program);
        // A call of NVML may hang.
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Completes on SIGTERM or SIGINT.
pub async fn shutdown_signal() {
    let both = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut term), Ok(mut int)) = both else { return std::future::pending().await };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}
