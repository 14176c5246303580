//! What one process does.

use std::process::ExitCode;

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::sys::{self, CUresult};
use vgpu_test_programs::cuda::{self, check, name};
use vgpu_test_programs::last_words;
use vgpu_test_programs::random::Random;

use crate::things::{KINDS, Maker, Thing};

/// So many things are enough; then more go than come.
const MOST: usize = 600;

pub fn run(arguments: &Arguments) -> ExitCode {
    last_words::prepare();
    match follow(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("failed {why}");
            ExitCode::FAILURE
        }
    }
}

fn follow(arguments: &Arguments) -> Result<(), String> {
    let ordinal = arguments.number("gpu", 0) as i32;
    let seed = arguments.number("seed", 1);
    let said = |code| format!("start: {}", name(code));
    cuda::start(ordinal).map_err(said)?;
    let (limit, limited) = (arguments.number("limit", 8 << 30), !arguments.has("native"));
    let one = |thread: u64| {
        let without = KINDS.iter().copied().filter(|kind| arguments.values("without").any(|left_out| left_out == *kind)).collect();
        let (maker, random) = (Maker::new(ordinal, without).map_err(said)?, Random::new(seed + (thread << 32)));
        Ok(Churn { random, maker, held: Vec::new(), calls: 0, refused: 0, limit, limited })
    };
    let mut churns = (0..arguments.number("threads", 1)).map(one).collect::<Result<Vec<_>, String>>()?;
    // Who comes late may find no room for a context.
    println!("started");
    let _ = std::io::stdin().read_line(&mut String::new());
    let steps = arguments.number("steps", 0);
    all(&mut churns, ordinal, |churn| churn.run(steps).map_err(|why| format!("{why} of --seed {seed}")))?;
    last_words::doing("settling");
    settle()?;
    let sum = |of: fn(&Churn) -> u64| churns.iter().map(of).sum::<u64>();
    println!("churned {} {}", sum(|churn| churn.calls), sum(|churn| churn.refused));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if line == "drain" {
            all(&mut churns, ordinal, Churn::drain)?;
            settle()?;
            println!("drained");
        } else {
            churns.iter_mut().try_for_each(Churn::too_much)?;
            println!("reconciled");
        }
    }
    Ok(())
}

/// Each in a thread of its own; a single one in this.
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

/// Waits for everything, and lets the pools give back what they do not use.
fn settle() -> Result<(), String> {
    cuda::synchronize().map_err(|code| format!("synchronize: {}", name(code)))
}

struct Churn {
    random: Random,
    maker: Maker,
    held: Vec<Thing>,
    calls: u64,
    refused: u64,
    limit: u64,
    limited: bool,
}

// SAFETY: handles of the driver's, which may be used in any thread.
unsafe impl Send for Churn {}

impl Churn {
    fn run(&mut self, steps: u64) -> Result<(), String> {
        (0..steps).try_for_each(|step| {
            last_words::step(step);
            self.step().map_err(|why| format!("step {step}: {why}"))
        })
    }

    fn step(&mut self) -> Result<(), String> {
        self.calls += 1;
        match self.random.below(100) {
            0..=4 if self.maker.has("nobodys") => self.free_what_is_nobodys(),
            5..=7 if self.maker.has("look") => self.look(),
            8..=9 if self.maker.has("trim") => self.maker.trim(&mut self.random).map_err(|(what, code)| format!("{what}: {}", name(code))),
            10 if self.maker.has("toomuch") => self.too_much(),
            0..=10 => Ok(()),
            _ if self.random.below(MOST as u64) >= self.held.len() as u64 => self.make(),
            _ => self.give_back(),
        }
    }

    fn make(&mut self) -> Result<(), String> {
        let kind = self.random.below(100);
        match self.maker.make(kind, &mut self.random) {
            Ok(thing) => self.held.extend(thing),
            Err((_, CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                self.refused += 1;
                for _ in 0..8 {
                    self.give_back()?;
                }
            }
            Err((what, code)) => return Err(format!("{what}: {}", name(code))),
        }
        Ok(())
    }

    fn give_back(&mut self) -> Result<(), String> {
        if self.held.is_empty() {
            return Ok(());
        }
        let mut which = self.random.below(self.held.len() as u64) as usize;
        if let (Some(&Thing::Pool(pool)), false) = (self.held.get(which), self.maker.has("orphans")) {
            // What is left of it goes first.
            let of_it = |thing: &Thing| matches!(thing, Thing::Ordered { pool: from, .. } if *from == pool);
            which = self.held.iter().position(of_it).unwrap_or(which);
        }
        let thing = self.held.swap_remove(which);
        let described = format!("{thing:?}");
        self.maker.give_back(thing, &mut self.random).map_err(|code| format!("giving back {described}: {}", name(code)))
    }

    /// Pointers that nothing was allocated at: the driver says so, and nothing changes.
    fn free_what_is_nobodys(&mut self) -> Result<(), String> {
        last_words::doing("freeing what is nobody's");
        let own = std::ptr::from_ref(self).addr() as u64;
        let inside = self.held.iter().find_map(|thing| if let Thing::Linear(address) = thing { Some(address + 8) } else { None });
        let address = [0x10_0000, own, u64::MAX - 4095, inside.unwrap_or(12345 << 21)][self.random.below(4) as usize];
        // SAFETY: the driver looks the address up, and finds that it did not give it out.
        let code = unsafe { sys::cuMemFree_v2(address) };
        if code == CUresult::CUDA_SUCCESS { Err(format!("cuMemFree of {address:#x} succeeds")) } else { Ok(()) }
    }

    fn look(&mut self) -> Result<(), String> {
        last_words::doing("looking");
        let (free, total) = cuda::memory().map_err(|code| format!("cuMemGetInfo: {}", name(code)))?;
        if free > total || (self.limited && total as u64 > self.limit) {
            return Err(format!("{free} of {total} bytes are said to be free, and the limit is {}", self.limit));
        }
        Ok(())
    }

    /// Asks for more than anyone may have, where there is a limit.
    fn too_much(&mut self) -> Result<(), String> {
        last_words::doing("asking for too much");
        let mut address = 0;
        // SAFETY: room for the answer; what was given after all is given back once.
        let code = unsafe {
            match sys::cuMemAlloc_v2(&raw mut address, self.limit as usize + 1) {
                CUresult::CUDA_SUCCESS if !self.limited => sys::cuMemFree_v2(address),
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => CUresult::CUDA_SUCCESS,
                code => return Err(format!("more than the limit: {}", name(code))),
            }
        };
        check(code).map_err(|code| format!("giving back what was more than the limit: {}", name(code)))
    }

    fn drain(&mut self) -> Result<(), String> {
        while !self.held.is_empty() {
            self.give_back()?;
        }
        // SAFETY: a plain call.
        check(unsafe { sys::cuDeviceGraphMemTrim(self.maker.ordinal) }).map_err(|code| format!("trim: {}", name(code)))
    }
}
