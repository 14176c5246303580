//! Trials of the program under the library, and their checks.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::limits::{GpuLimit, Selector};
use vgpu_test_programs::share::Share;

use crate::watch::{self, Peak};

const MIB: u64 = 1 << 20;
/// Memory that the driver takes for a process without listing it (9 MiB on driver 580, H200), with a margin. Two processes run at a time.
const UNLISTED: u64 = 16 * MIB;

/// Sizes, in bytes.
pub struct Sizes<'a> {
    /// Path of the library.
    pub library: &'a str,
    /// The share of the GPU.
    pub limit: u64,
    /// The limit of spilled memory on the host.
    pub ceiling: u64,
    /// What the program needs.
    pub need: u64,
    /// The size of one allocation.
    pub chunk: u64,
}

/// Runs all trials. Returns whether every trial passed.
pub fn run(sizes: &Sizes) -> Result<bool, String> {
    println!(
        "trial | obtained | spilled | wrong words | kernels | maximum | error | NVML's processes | NVML's GPU | of it unlisted | samples"
    );
    let trials = [without(sizes)?, with(sizes)?, two(sizes)?, killed(sizes)?];
    Ok(trials.iter().all(|good| *good))
}

/// Without oversubscription, the program gets its share only.
fn without(sizes: &Sizes) -> Result<bool, String> {
    let share = share(sizes, 0)?;
    let (answer, peak) = watch::during(|| answer(&mut sizes.program(&share, sizes.need)))?;
    let answer = answer?;
    let good = answer.most < sizes.limit && answer.elsewhere == 0 && answer.total == sizes.limit;
    Ok(sizes.judge("no spill", &answer, peak, good))
}

/// With oversubscription, the program gets all that it needs and no more than limit and ceiling.
fn with(sizes: &Sizes) -> Result<bool, String> {
    let share = share(sizes, sizes.ceiling)?;
    let (answer, peak) = watch::during(|| answer(&mut sizes.program(&share, sizes.need)))?;
    let answer = answer?;
    let all = sizes.limit + sizes.ceiling;
    let good = answer.obtained >= sizes.need
        && answer.elsewhere > 0
        && answer.total == all
        && answer.most <= all
        && answer.most + 2 * sizes.chunk >= answer.before
        && answer.left <= 2 * sizes.chunk
        // A pool may keep 32 MiB, the step in which it grows.
        && answer.after + 32 * MIB >= answer.before;
    let released = share.ledger()?.spilled == 0;
    Ok(sizes.judge("spill", &answer, peak, good && released))
}

/// Two processes share limit and ceiling.
fn two(sizes: &Sizes) -> Result<bool, String> {
    let share = share(sizes, sizes.ceiling)?;
    let (answer, peak) = watch::during(|| {
        // The second context has to fit on the device as well.
        let mut other = Holder::start(&mut sizes.program(&share, sizes.need / 4))?;
        let answer = answer(&mut sizes.program(&share, sizes.need / 2));
        other.kill();
        answer
    })?;
    let answer = answer?;
    let good = answer.obtained >= sizes.need / 2 && answer.elsewhere > 0 && answer.most + sizes.need / 4 <= sizes.limit + sizes.ceiling;
    Ok(sizes.judge("two processes", &answer, peak, good))
}

/// Memory that a killed process had on the host is available to the next process.
fn killed(sizes: &Sizes) -> Result<bool, String> {
    let share = share(sizes, sizes.ceiling)?;
    let mut first = Holder::start(&mut sizes.program(&share, sizes.need))?;
    let spilled = share.ledger()?.spilled;
    first.kill();
    let (answer, peak) = watch::during(|| answer(&mut sizes.program(&share, sizes.need)))?;
    let answer = answer?;
    let released = share.ledger()?.spilled == 0;
    let good = spilled > 0 && released && answer.obtained >= sizes.need;
    Ok(sizes.judge("after a killed process", &answer, peak, good))
}

/// A process that holds what it needs.
struct Holder(Child);

impl Holder {
    fn start(command: &mut Command) -> Result<Holder, String> {
        let mut process = command.arg("--hold").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let (mut line, output) = (String::new(), process.stdout.take());
        let holder = Holder(process);
        output.map(|output| BufReader::new(output).read_line(&mut line));
        if line.trim() == "held" { Ok(holder) } else { Err(format!("{line:?}: expected \"held\"")) }
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
    }
}

fn share(sizes: &Sizes, ceiling: u64) -> Result<Share, String> {
    let limit = GpuLimit::new(Selector::All);
    limit.memory.store(sizes.limit, Relaxed);
    limit.spill.store(ceiling, Relaxed);
    Share::with([limit])
}

impl Sizes<'_> {
    fn program(&self, share: &Share, need: u64) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command.args(["--need", &need.to_string(), "--chunk", &self.chunk.to_string()]);
        share.limits(self.library, &mut command);
        command
    }

    /// Checks what all trials have in common and prints the trial. `good` says whether its own checks passed.
    fn judge(&self, name: &str, answer: &Answer, peak: Peak, good: bool) -> bool {
        let good = good
            && answer.wrong == 0
            && answer.refused == "CUDA_ERROR_OUT_OF_MEMORY"
            && peak.held <= self.limit
            && peak.used <= self.limit + 2 * UNLISTED;
        println!(
            "{name} | {} MiB | {} MiB | {} | {} | {} MiB | {} | {} MiB | {} MiB | {} MiB | {} | {}",
            answer.obtained / MIB,
            answer.elsewhere / MIB,
            answer.wrong,
            if answer.kernels { "run" } else { "not run on this GPU" },
            answer.most / MIB,
            answer.refused,
            peak.held.div_ceil(MIB),
            peak.used.div_ceil(MIB),
            peak.unlisted.div_ceil(MIB),
            peak.samples,
            if good { "ok" } else { "**WRONG**" },
        );
        good
    }
}

/// The output of the program.
struct Answer {
    obtained: u64,
    elsewhere: u64,
    wrong: u64,
    kernels: bool,
    most: u64,
    refused: String,
    total: u64,
    before: u64,
    left: u64,
    after: u64,
}

fn answer(command: &mut Command) -> Result<Answer, String> {
    let Output { status, stdout, .. } = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&stdout);
    let line = text.lines().find(|line| line.starts_with('{')).filter(|_| status.success()).ok_or(format!("{status}: {text}"))?;
    let field = |name: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\":")).ok_or(format!("no {name}: {line}"))?;
        Ok::<_, String>(rest.split([',', '}']).next().unwrap_or_default().trim_matches('"'))
    };
    let number = |name: &str| field(name)?.parse::<u64>().map_err(|_| format!("{name}: {line}"));
    Ok(Answer {
        obtained: number("obtained")?,
        elsewhere: number("elsewhere")?,
        wrong: number("wrong")?,
        kernels: field("kernels")? == "true",
        most: number("most")?,
        refused: field("refused")?.to_owned(),
        total: number("total")?,
        before: number("before")?,
        left: number("left")?,
        after: number("after")?,
    })
}
