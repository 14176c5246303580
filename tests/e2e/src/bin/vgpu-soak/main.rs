//! Starts, limits, changes, pauses, kills and deletes containers at random for a long time, while the monitor is killed every minute, and
//! checks that nothing is left behind and that accounts equal what the simulated GPU knows. Writes a report in Markdown to stdout, progress
//! to stderr, and a line of JSON to the log for each checkpoint.
//!
//!     vgpu-soak [--seconds S] [--containers N] [--seed X] --log FILE
//!
//! Defaults: 7,200 s, 50 containers, a seed from the clock. Temporary files are in TMPDIR, which should be empty. Runs as root, with runc,
//! and with crun if it is installed. Exits with 1 if something was found.

mod accounts;
mod checkpoint;
mod counts;
mod end;
mod fleet;
mod parts;
mod report;
mod tenant;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vgpu_e2e::{Kit, Monitor, process};
use vgpu_test_harness::{Runtime, can_run};
use vgpu_test_programs::arguments::Arguments;

use checkpoint::Log;
use fleet::Fleet;

/// Time between checkpoints, and between kills of the monitor.
const MINUTE: Duration = Duration::from_secs(60);
/// Mean time between operations, which leaves most of a core to others.
const PAUSE: Duration = Duration::from_millis(1000);
/// Minutes for which a process of the monitor lives if it is not the part that is killed every minute.
const BLOCK: u64 = 12;
/// Time within which the parts of a killed supervisor end.
const PARTS_END: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let (seconds, wanted, seed) = (arguments.number("seconds", 7200), arguments.number("containers", 50), arguments.number("seed", clock));
    let Some(log) = arguments.value("log") else {
        eprintln!("--log: expected a file");
        return ExitCode::from(2);
    };
    let runtimes: Vec<_> = [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime)).collect();
    if runtimes.is_empty() {
        return ExitCode::FAILURE;
    }
    eprintln!("soak: {seconds} s, {wanted} containers, --seed {seed}");
    let kit = Kit::find();
    let mut soak = Soak::new(&kit, &runtimes, seed, Log::create(log));
    soak.run(Duration::from_secs(seconds), wanted as usize);
    let Soak { fleet, monitor, log, begin, .. } = soak;
    let findings = end::end(fleet, monitor, &begin, log, &report::About { seconds, wanted, seed, runtimes });
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The state of a run.
struct Soak<'a> {
    kit: &'a Kit,
    fleet: Fleet,
    monitor: Monitor,
    log: Log,
    begin: checkpoint::Begin,
}

impl<'a> Soak<'a> {
    /// Creates the hosts, and notes what is there without containers.
    fn new(kit: &'a Kit, runtimes: &[Runtime], seed: u64, mut log: Log) -> Self {
        let mut fleet = Fleet::new(kit, runtimes, seed);
        // Each runtime leaves its empty folders.
        end::sweep(&mut fleet);
        let monitor = Monitor::start(kit, fleet.host(), &fleet.machine);
        std::thread::sleep(PARTS_END);
        let begin = checkpoint::Begin::of(&fleet, &monitor);
        log.write(&begin.as_json());
        Self { kit, fleet, monitor, log, begin }
    }

    /// Does operations, checkpoints and kills for some time.
    fn run(&mut self, time: Duration, wanted: usize) {
        while self.fleet.tenants.len() < wanted {
            self.fleet.start();
        }
        let begun = Instant::now();
        let mut minute = 0;
        while begun.elapsed() < time {
            self.fleet.step(&self.monitor, wanted);
            if !process::is_running(self.monitor.pid()) {
                self.log.find("the supervisor ended by itself".to_owned());
                self.restart();
            }
            std::thread::sleep(PAUSE);
            if begun.elapsed() >= MINUTE * (minute + 1) {
                minute += 1;
                self.log.checkpoint(Some(u64::from(minute)), &self.fleet, &self.monitor);
                // The last processes live until the end.
                if begun.elapsed() + MINUTE < time {
                    self.kill(u64::from(minute));
                }
            }
        }
    }

    /// Kills the supervisor or one of its parts.
    fn kill(&mut self, minute: u64) {
        let role = parts::victim(minute, BLOCK);
        self.log.killed(role);
        if role == parts::SUPERVISOR {
            return self.restart();
        }
        let roles = parts::roles(self.monitor.pid());
        if let Some((pid, _)) = roles.iter().find(|(_, name)| name == role) {
            let _ = Pid::from_raw(pid.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
        }
    }

    /// Kills the supervisor, and starts it again when its parts have ended.
    fn restart(&mut self) {
        let parts: Vec<u32> = process::tree(self.monitor.pid()).into_iter().skip(1).collect();
        self.log.false_reports(&self.monitor);
        let supervisor = Pid::from_raw(self.monitor.pid().cast_signed());
        let _ = supervisor.map(|pid| kill_process(pid, Signal::KILL));
        let left = end::wait_for_end(&parts, PARTS_END);
        if !left.is_empty() {
            self.log.find(format!("parts that outlive the supervisor: {left:?}"));
        }
        self.monitor = Monitor::start(self.kit, self.fleet.host(), &self.fleet.machine);
    }
}
