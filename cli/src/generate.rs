//! `vgpu generate` (hidden): shell completions and manual pages for the packages.

use crate::outcome::Outcome;
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the shell completions and manual pages for the packages
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder in which completions/ and man/ are created
    folder: PathBuf,
}

impl Args {
    /// Writes the completions and manual pages of `all`, the whole command line.
    pub fn run(self, all: &Command) -> Outcome {
        let (completions, man) = (self.folder.join("completions"), self.folder.join("man"));
        fs::create_dir_all(&completions)?;
        fs::create_dir_all(&man)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut visible(all), "vgpu", &completions)?;
        }
        clap_mangen::generate_to(visible(all), &man)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the command line without hidden subcommands.
fn visible(all: &Command) -> Command {
    let subcommands = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("vgpu")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .about(all.get_about().cloned().unwrap_or_default())
        .subcommands(subcommands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_subcommand_has_a_manual_page_and_every_shell_a_completion() {
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
