//! `vgpu generate`, hidden: completions and manual pages for the packages.

use crate::outcome::Outcome;
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write completions and manual pages, as the packages ship them
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder that gets completions/ and man/
    folder: PathBuf,
}

impl Args {
    /// Writes what describes the command line `all`.
    pub fn run(self, all: &Command) -> Outcome {
        let (completions, man) = (self.folder.join("completions"), self.folder.join("man"));
        fs::create_dir_all(&completions)?;
        fs::create_dir_all(&man)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut shown(all), "vgpu", &completions)?;
        }
        clap_mangen::generate_to(shown(all), &man)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The command line without what is hidden.
fn shown(all: &Command) -> Command {
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("vgpu")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .about(all.get_about().cloned().unwrap_or_default())
        .subcommands(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_subcommand_has_its_page_and_every_shell_its_completion() {
        let dir = tempfile::tempdir().unwrap();
        Args { folder: dir.path().to_owned() }.run(&Cli::command()).unwrap();
        for file in ["completions/vgpu.bash", "completions/_vgpu", "completions/vgpu.fish"] {
            let text = fs::read_to_string(dir.path().join(file)).unwrap();
            assert!(text.contains("set-as-default") && !text.contains("generate"), "{file}");
        }
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let page = dir.path().join(format!("man/vgpu-{}.1", command.get_name()));
            assert!(fs::read_to_string(page).unwrap().contains(".TH"));
        }
    }
}
