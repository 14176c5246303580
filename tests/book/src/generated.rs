//! The generated pages.

use clap::CommandFactory;
use vgpu_cli::Cli;

use crate::{chart, commands, metrics, policy};

/// Returns the generated pages: path below `docs/`, and text.
pub fn pages() -> Vec<(&'static str, String)> {
    let dra = vgpu_dra::options::Options::command();
    let webhook = vgpu_dra::webhook::options::Options::command();
    vec![
        ("reference/vgpu.md", page("cli/src/lib.rs", &commands::page(Cli::command()))),
        ("reference/vgpu-dra.md", page("dra/src/options.rs", &commands::page(dra))),
        ("reference/vgpu-webhook.md", page("dra/src/webhook/options.rs", &commands::page(webhook))),
        ("reference/policy.md", page("config/src/policy.rs", &policy::page())),
        ("reference/chart.md", page("packaging/helm/vgpu/values.yaml", &chart::page())),
        ("reference/metrics.md", page("monitor/src/metrics.rs", &metrics::page())),
    ]
}

/// Returns a page with a note of where its content comes from.
fn page(source: &str, text: &str) -> String {
    format!("<!-- Written by \"cargo run -p vgpu-book\" from {source}. -->\n\n{}\n", text.trim())
}
