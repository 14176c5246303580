//! The work of one process.

use std::process::ExitCode;

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::crash_report;
use vgpu_test_programs::cuda::sys::{self, CUresult};
use vgpu_test_programs::cuda::{self, check, name};
use vgpu_test_programs::random::Random;

use crate::objects::{KINDS, Maker, Object};

/// Number of objects above which more are released than created.
const MAX_OBJECTS: usize = 600;

pub fn run(arguments: &Arguments) -> ExitCode {
    crash_report::prepare();
    match follow(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed {error}");
            ExitCode::FAILURE
        }
    }
}

fn follow(arguments: &Arguments) -> Result<(), String> {
    let ordinal = arguments.number("gpu", 0) as i32;
    let seed = arguments.number("seed", 1);
    let start_error = |code| format!("start: {}", name(code));
    cuda::start(ordinal).map_err(start_error)?;
    let (limit, limited) = (arguments.number("limit", 8 << 30), !arguments.has("native"));
    let one = |thread: u64| {
        let without = KINDS.iter().copied().filter(|kind| arguments.values("without").any(|left_out| left_out == *kind)).collect();
        let (maker, random) = (Maker::new(ordinal, without).map_err(start_error)?, Random::new(seed + (thread << 32)));
        Ok(Churn { random, maker, held: Vec::new(), calls: 0, refused: 0, limit, limited })
    };
    let mut churns = (0..arguments.number("threads", 1)).map(one).collect::<Result<Vec<_>, String>>()?;
    // All contexts must exist before the first allocation: a late process might have no memory for its context.
    println!("started");
    let _ = std::io::stdin().read_line(&mut String::new());
    let steps = arguments.number("steps", 0);
    all(&mut churns, ordinal, |churn| churn.run(steps).map_err(|error| format!("{error} of --seed {seed}")))?;
    crash_report::doing("waiting for all work");
    settle()?;
    let sum = |of: fn(&Churn) -> u64| churns.iter().map(of).sum::<u64>();
    println!("churned {} {}", sum(|churn| churn.calls), sum(|churn| churn.refused));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if line == "drain" {
            all(&mut churns, ordinal, Churn::drain)?;
            settle()?;
            println!("drained");
        } else {
            churns.iter_mut().try_for_each(Churn::request_over_limit)?;
            println!("reconciled");
        }
    }
    Ok(())
}

/// Runs `work` for each churn in a thread of its own; for a single one in this thread.
fn all(churns: &mut [Churn], ordinal: i32, work: impl Fn(&mut Churn) -> Result<(), String> + Sync) -> Result<(), String> {
    if let [churn] = churns {
        return work(churn);
    }
    let work = &work;
    std::thread::scope(|scope| {
        let begin = |churn| {
            scope.spawn(move || {
                cuda::start(ordinal).map_err(|code| format!("start: {}", name(code)))?;
                work(churn)
            })
        };
        let threads = churns.iter_mut().map(begin).collect::<Vec<_>>();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_string())?)
    })
}

/// Waits for all work; at that point pools release memory that they do not use.
fn settle() -> Result<(), String> {
    cuda::synchronize().map_err(|code| format!("synchronize: {}", name(code)))
}

struct Churn {
    random: Random,
    maker: Maker,
    held: Vec<Object>,
    calls: u64,
    refused: u64,
    limit: u64,
    limited: bool,
}

// SAFETY: the driver's handles may be used in any thread.
unsafe impl Send for Churn {}

impl Churn {
    fn run(&mut self, steps: u64) -> Result<(), String> {
        (0..steps).try_for_each(|step| {
            crash_report::step(step);
            self.step().map_err(|error| format!("step {step}: {error}"))
        })
    }

    fn step(&mut self) -> Result<(), String> {
        self.calls += 1;
        match self.random.below(100) {
            0..=4 if self.maker.has("invalid-free") => self.free_invalid_address(),
            5..=7 if self.maker.has("query") => self.query(),
            8..=9 if self.maker.has("trim") => self.maker.trim(&mut self.random).map_err(|(what, code)| format!("{what}: {}", name(code))),
            10 if self.maker.has("over-limit") => self.request_over_limit(),
            0..=10 => Ok(()),
            _ if self.random.below(MAX_OBJECTS as u64) >= self.held.len() as u64 => self.make(),
            _ => self.release(),
        }
    }

    fn make(&mut self) -> Result<(), String> {
        let kind = self.random.below(100);
        match self.maker.make(kind, &mut self.random) {
            Ok(object) => self.held.extend(object),
            Err((_, CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                self.refused += 1;
                for _ in 0..8 {
                    self.release()?;
                }
            }
            Err((what, code)) => return Err(format!("{what}: {}", name(code))),
        }
        Ok(())
    }

    fn release(&mut self) -> Result<(), String> {
        if self.held.is_empty() {
            return Ok(());
        }
        let mut which = self.random.below(self.held.len() as u64) as usize;
        if let (Some(&Object::Pool(pool)), false) = (self.held.get(which), self.maker.has("orphans")) {
            // Allocations from the pool are released first.
            let of_it = |object: &Object| matches!(object, Object::Ordered { pool: from, .. } if *from == pool);
            which = self.held.iter().position(of_it).unwrap_or(which);
        }
        let object = self.held.swap_remove(which);
        let described = format!("{object:?}");
        self.maker.release(object, &mut self.random).map_err(|code| format!("releasing {described}: {}", name(code)))
    }

    /// Frees addresses that are not allocations: the driver must refuse, and nothing may change.
    fn free_invalid_address(&mut self) -> Result<(), String> {
        crash_report::doing("freeing an invalid address");
        let own = std::ptr::from_ref(self).addr() as u64;
        let inside = self.held.iter().find_map(|object| if let Object::Linear(address) = object { Some(address + 8) } else { None });
        let address = [0x10_0000, own, u64::MAX - 4095, inside.unwrap_or(12345 << 21)][self.random.below(4) as usize];
        // SAFETY: the driver looks the address up and refuses it.
        let code = unsafe { sys::cuMemFree_v2(address) };
        if code == CUresult::CUDA_SUCCESS { Err(format!("cuMemFree of {address:#x} succeeds")) } else { Ok(()) }
    }

    fn query(&mut self) -> Result<(), String> {
        crash_report::doing("querying free memory");
        let (free, total) = cuda::memory().map_err(|code| format!("cuMemGetInfo: {}", name(code)))?;
        if free > total || (self.limited && total as u64 > self.limit) {
            return Err(format!("cuMemGetInfo: {free} bytes free of {total}, with a limit of {}", self.limit));
        }
        Ok(())
    }

    /// Requests more than the limit, if there is one.
    fn request_over_limit(&mut self) -> Result<(), String> {
        crash_report::doing("requesting more than the limit");
        let mut address = 0;
        // SAFETY: the out-pointer is valid; memory that is granted is freed once.
        let code = unsafe {
            match sys::cuMemAlloc_v2(&raw mut address, self.limit as usize + 1) {
                CUresult::CUDA_SUCCESS if !self.limited => sys::cuMemFree_v2(address),
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => CUresult::CUDA_SUCCESS,
                code => return Err(format!("more than the limit: {}", name(code))),
            }
        };
        check(code).map_err(|code| format!("freeing more than the limit: {}", name(code)))
    }

    fn drain(&mut self) -> Result<(), String> {
        while !self.held.is_empty() {
            self.release()?;
        }
        // SAFETY: the argument is a plain number.
        check(unsafe { sys::cuDeviceGraphMemTrim(self.maker.ordinal) }).map_err(|code| format!("trim: {}", name(code)))
    }
}
