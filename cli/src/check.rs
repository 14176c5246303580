//! `vgpu check`.
use crate::Outcome;
/// Say what is right on this machine, and what to do about the rest
#[derive(Debug, clap::Args)]
pub struct Args {}
impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        todo!()
    }
}
