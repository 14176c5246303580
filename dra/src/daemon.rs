//! What both programs share as programs.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

/// Says something in the log, which is standard error, as the program called `name`.
pub fn say(name: &str, line: &str) {
    eprintln!("{name}: {line}");
}

/// Runs a program to its end; a failure is said and becomes its exit status.
pub fn main(name: &str, program: impl Future<Output = Result<(), String>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(program)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(name, &error);
            ExitCode::FAILURE
        }
    }
}

/// Comes with SIGTERM or SIGINT.
pub async fn shutdown_signal() {
    let both = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut term), Ok(mut int)) = both else { return std::future::pending().await };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}
