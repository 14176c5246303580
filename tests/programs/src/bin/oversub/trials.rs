//! The program under the library, and what has to come of it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::limits::{GpuLimit, Selector};
use vgpu_test_programs::share::Share;

use crate::MIB;
use crate::watch::{self, Peak};

/// What the driver takes for a process without listing it there (9 MiB on driver 580, H200), and a little more; two run at a time.
const UNLISTED: u64 = 16 * MIB;

/// How large everything is, in bytes.
pub struct Sizes<'a> {
    /// The library's file.
    pub library: &'a str,
    /// The share of the GPU.
    pub limit: u64,
    /// On the host beside it.
    pub ceiling: u64,
    /// What the program needs.
    pub need: u64,
    /// At a time.
    pub chunk: u64,
}

/// Runs all trials. Whether everything was as it should be.
pub fn run(sizes: &Sizes) -> Result<bool, String> {
    println!(
        "trial | obtained | on the host | wrong | kernels | at most | refused with | NVML's processes | NVML's GPU | of it unlisted | looks"
    );
    let trials = [without(sizes)?, with(sizes)?, two(sizes)?, killed(sizes)?];
    Ok(trials.iter().all(|good| *good))
}

/// No oversubscription: the share is all there is.
fn without(sizes: &Sizes) -> Result<bool, String> {
    let share = share(sizes, 0)?;
    let (answer, peak) = watch::during(|| answer(&mut sizes.program(&share, sizes.need)))?;
    let answer = answer?;
    let good = answer.most < sizes.limit && answer.elsewhere == 0 && answer.total == sizes.limit;
    Ok(sizes.judge("none on the host", &answer, peak, good))
}

/// All that the program needs, and no more than the ceiling.
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
        // A pool may keep a step.
        && answer.after + 32 * MIB >= answer.before;
    let given_back = share.ledger()?.spilled == 0;
    Ok(sizes.judge("what does not fit on the host", &answer, peak, good && given_back))
}

/// Two at a time share limit and ceiling.
fn two(sizes: &Sizes) -> Result<bool, String> {
    let share = share(sizes, sizes.ceiling)?;
    let (answer, peak) = watch::during(|| {
        // Its context has to fit on the device as well.
        let mut other = Holder::start(&mut sizes.program(&share, sizes.need / 4))?;
        let answer = answer(&mut sizes.program(&share, sizes.need / 2));
        other.kill();
        answer
    })?;
    let answer = answer?;
    let good = answer.obtained >= sizes.need / 2 && answer.elsewhere > 0 && answer.most + sizes.need / 4 <= sizes.limit + sizes.ceiling;
    Ok(sizes.judge("beside another", &answer, peak, good))
}

/// What a killed process had on the host is there for the next.
fn killed(sizes: &Sizes) -> Result<bool, String> {
    let share = share(sizes, sizes.ceiling)?;
    let mut first = Holder::start(&mut sizes.program(&share, sizes.need))?;
    let spilled = share.ledger()?.spilled;
    first.kill();
    let (answer, peak) = watch::during(|| answer(&mut sizes.program(&share, sizes.need)))?;
    let answer = answer?;
    let given_back = share.ledger()?.spilled == 0;
    let good = spilled > 0 && given_back && answer.obtained >= sizes.need;
    Ok(sizes.judge("after one that was killed", &answer, peak, good))
}

/// A process that has what it needs.
struct Holder(Child);

impl Holder {
    fn start(command: &mut Command) -> Result<Holder, String> {
        let mut process = command.arg("--hold").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|why| why.to_string())?;
        let (mut line, output) = (String::new(), process.stdout.take());
        let holder = Holder(process);
        output.map(|output| BufReader::new(output).read_line(&mut line));
        if line.trim() == "held" { Ok(holder) } else { Err(format!("not held: {line}")) }
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

    /// Prints a trial. `good` is what is particular to it.
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
            if answer.kernels { "run" } else { "not on this GPU" },
            answer.most / MIB,
            answer.refused,
            peak.held.div_ceil(MIB),
            peak.used.div_ceil(MIB),
            peak.unlisted.div_ceil(MIB),
            peak.samples,
            if good { "good" } else { "NOT AS IT SHOULD BE" },
        );
        good
    }
}

/// What the program says.
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
    let Output { status, stdout, .. } = command.stderr(Stdio::inherit()).output().map_err(|why| why.to_string())?;
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
