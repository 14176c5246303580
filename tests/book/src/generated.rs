//! The generated pages of the book, and manual pages.

use clap::{Command, CommandFactory};
use vgpu_cli::Cli;

use crate::{chart, commands, metrics, policy};

/// Returns the generated pages: path in the repository, and text. The manual pages of `vgpu` are not among them: `vgpu generate` writes
/// those. The others are stored, because releases build no program that could write them.
pub fn pages() -> Vec<(&'static str, String)> {
    let dra = vgpu_dra::options::Options::command();
    let webhook = vgpu_dra::webhook::options::Options::command();
    vec![
        ("packaging/man/vgpu-dra.1", manual(dra.clone())),
        ("packaging/man/vgpu-webhook.1", manual(webhook.clone())),
        ("docs/reference/vgpu.md", page("cli/src/lib.rs", &commands::page(Cli::command()))),
        ("docs/reference/vgpu-dra.md", page("dra/src/options.rs", &commands::page(dra))),
        ("docs/reference/vgpu-webhook.md", page("dra/src/webhook/options.rs", &commands::page(webhook))),
        ("docs/reference/policy.md", page("config/src/policy.rs", &policy::page())),
        ("docs/reference/chart.md", page("packaging/helm/vgpu/values.yaml", &chart::page())),
        ("docs/reference/metrics.md", page("monitor/src/metrics.rs", &metrics::page())),
    ]
}

/// Returns the manual page of a program.
fn manual(program: Command) -> String {
    let mut text = vec![];
    clap_mangen::Man::new(program).render(&mut text).expect("a vector can be written");
    String::from_utf8(text).expect("clap's texts are UTF-8")
}

/// Returns a page with a note of where its content comes from.
fn page(source: &str, text: &str) -> String {
    format!("<!-- Written by \"cargo run -p vgpu-book\" from {source}. -->\n\n{}\n", text.trim())
}
