//! Memory that moves to the host and back under a program that uses it, without a container. The programs check each word and their
//! accounts. `make moves` makes many more moves.

use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use vgpu_e2e::{Kit, Machine};
use vgpu_test_programs::share::{Orders, Share};

/// Runs a program under the library on a simulated GPU. Returns what it prints.
fn run(program: &str, arguments: &[&str]) -> String {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &["total=16G"]);
    let seed = vgpu_e2e::seed();
    let output = machine.program(program).arg("--library").arg(kit.library()).args(arguments).args(["--seed", &seed]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn every_word_is_right_after_moves() {
    let moves = std::env::var("VGPU_TEST_MOVES").unwrap_or_else(|_| "200".to_owned());
    run("moves", &["--moves", &moves, "--threads", "3", "--blocks", "2", "--largest", "4M", "--pause", "500"]);
}

#[test]
fn every_word_is_right_after_moves_under_several_contexts() {
    run(
        "moves",
        &["--moves", "100", "--threads", "3", "--blocks", "3", "--largest", "6M", "--pause", "500", "--limit", "4G", "--contexts"],
    );
}

/// A program that rests copies its memory ahead. The order comes before, meanwhile, afterwards, or after the next work.
#[test]
fn every_word_is_right_after_copies_ahead() {
    run(
        "moves",
        &[
            "--moves",
            "12",
            "--threads",
            "2",
            "--blocks",
            "3",
            "--smallest",
            "1M",
            "--largest",
            "32M",
            "--pause",
            "5000000",
            "--rest",
            "2500",
        ],
    );
}

/// An allocation of more than 1 GiB consists of several blocks.
#[test]
fn every_word_of_a_large_allocation_is_right() {
    let large = ["--smallest", "1030M", "--largest", "1040M", "--limit", "4G"];
    run("moves", &[&["--moves", "2", "--threads", "1", "--blocks", "2", "--pause", "200000"], &large[..]].concat());
}

#[test]
fn accounts_equal_nvml_after_moves() {
    run("churn", &["--moves", "--limit", "4G", "--processes", "2", "--threads", "2", "--steps", "300", "--rounds", "2"]);
}

/// Processes are killed in the middle of moves, and arbiters too. Another process's words, and the accounts, are right all the same.
#[test]
fn killed_processes_leave_the_others_right() {
    let said = run("moves", &["--kills", "24", "--threads", "2", "--blocks", "3", "--largest", "8M", "--limit", "4G"]);
    let counts: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&counts["kills"], &counts["arbiter_deaths"]), (&18.into(), &6.into()));
    let in_a_move = ["pending", "out"].map(|of| counts[of].as_u64().unwrap());
    assert_ne!(in_a_move, [0, 0], "no process was killed in the middle of a move");
}

/// The driver's answers to a program that manages memory itself are the same where that memory can move: the program has the library's
/// handles then.
#[test]
fn handles_that_can_move_behave_as_the_drivers() {
    let kit = Kit::find();
    let answers = |share: Option<&Share>| {
        let machine = Machine::simulated(&kit, &["total=16G"]);
        let mut program = machine.program("../simgpu/conformance");
        program.arg("vmm");
        let program = match share {
            Some(share) => share.limits(kit.library().to_str().unwrap(), &mut program),
            None => &mut program,
        };
        let output = program.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let native = answers(None);
    assert!(native.contains("retain: CUDA_SUCCESS"), "{native}");
    assert_eq!(answers(Some(&Share::evictable(16 << 30).unwrap())), native);
}

/// A process that does nothing makes the host memory for its first move before somebody asks for room, and copies its memory there when
/// it is told that it will have to leave.
#[test]
fn an_idle_process_copies_its_memory_ahead() {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &["total=16G"]);
    let share = Share::evictable(4 << 30).unwrap();
    let mut program = machine.program("fill");
    program.args(["--chunk", "64M", "--max", "256M", "--value", "42", "--hold", "600"]).stdout(Stdio::piped());
    let mut child = share.limits(kit.library().to_str().unwrap(), &mut program).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let wait_for = |tell: &dyn Fn(), is_so: &dyn Fn(&HostMemory) -> bool| {
        let begun = Instant::now();
        while !HostMemory::of(child.id()).is_some_and(|memory| is_so(&memory)) && begun.elapsed() < Duration::from_secs(60) {
            tell();
            std::thread::sleep(Duration::from_millis(50));
        }
        HostMemory::of(child.id())
    };
    // The simulated driver does not make pages present that it registers. The real one does, and holds up the program meanwhile.
    let made = wait_for(&|| {}, &|memory| memory.present == 256 << 20);
    let copied = wait_for(&|| Orders::let_copy_ahead(&share).unwrap(), &|memory| memory.filled == 256);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(made, Some(HostMemory { present: 256 << 20, filled: 0 }), "{line}");
    assert_eq!(copied, Some(HostMemory { present: 256 << 20, filled: 256 }), "{line}");
}

/// A process's host memory for moves.
#[derive(Debug, Default, PartialEq, Eq)]
struct HostMemory {
    /// Bytes that are present.
    present: u64,
    /// Number of MiB that begin with 42.
    filled: u64,
}

impl HostMemory {
    /// Returns that of a process; `None` while it has none. The mappings that are not copied to children (`dc`) are the library's.
    fn of(pid: u32) -> Option<Self> {
        let (maps, memory) = (read_to_string(format!("/proc/{pid}/smaps")).ok()?, File::open(format!("/proc/{pid}/mem")).ok()?);
        let (mut range, mut present, mut found) = (0..0, 0, None);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let first = words.next()?;
            if let Some((start, end)) = first.split_once('-') {
                let address = |text| u64::from_str_radix(text, 16).ok();
                range = address(start)?..address(end)?;
            } else if first == "Rss:" {
                present = words.next()?.parse::<u64>().ok()? << 10;
            } else if first == "VmFlags:" && words.any(|flag| flag == "dc") {
                let begins_with_42 = |at: &u64| {
                    let mut byte = [0];
                    memory.read_exact_at(&mut byte, *at).is_ok() && byte == [42]
                };
                let Self { present: before, filled } = found.unwrap_or_default();
                // Addresses are kept for more than that.
                let filled = filled + range.clone().step_by(1 << 20).take(256).filter(begins_with_42).count() as u64;
                found = Some(Self { present: before + present, filled });
            }
        }
        found
    }
}
