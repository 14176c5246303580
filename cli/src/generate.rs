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
    fn every_subcommand_and_option_has_its_manual_page_and_completions() {
        let dir = tempfile::tempdir().unwrap();
        Args { folder: dir.path().to_owned() }.run(&Cli::command()).unwrap();
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let completions = ["vgpu.bash", "_vgpu", "vgpu.fish"].map(|file| (file, read(&format!("completions/{file}"))));
        assert!(completions.iter().all(|(_, text)| !text.contains("generate")), "a hidden subcommand");
        let mut options = 0;
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            // In roff, a hyphen is escaped.
            let page = read(&format!("man/vgpu-{name}.1")).replace("\\-", "-");
            assert!(page.contains(".TH") && !command.has_subcommands(), "{name}");
            for option in command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long) {
                options += 1;
                assert!(has(&page, &format!("--{option}")), "{name}: --{option} is not in its manual page");
                for (file, text) in &completions {
                    assert!(completes(file, text, name, option), "{name}: --{option} is not in {file}");
                }
            }
        }
        assert!(options > 20, "only {options} options were found");
    }

    /// Returns whether a shell's completions have this option of this subcommand.
    fn completes(file: &str, text: &str, command: &str, option: &str) -> bool {
        let part = match file {
            "vgpu.fish" => {
                let of_command = format!("__fish_vgpu_using_subcommand {command}\"");
                return text.lines().any(|line| line.contains(&of_command) && has(line, &format!("-l {option}")));
            }
            "vgpu.bash" => text.split(&format!("\n        vgpu__subcmd__{command})")).nth(1).and_then(|rest| rest.split(";;").next()),
            _ => text.split(&format!("({command})\n")).nth(1).and_then(|rest| rest.split(";;").next()),
        };
        part.is_some_and(|part| has(part, &format!("--{option}")))
    }

    /// Returns whether a text has an option that is not the beginning of a longer one.
    fn has(text: &str, option: &str) -> bool {
        text.split(option).skip(1).any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-'))
    }
}
