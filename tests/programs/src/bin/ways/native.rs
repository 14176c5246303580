//! Memory that a bystander process holds, so that natively no more is free than under the limit.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};

use vgpu_test_programs::cuda::sys::{self, CUresult};
use vgpu_test_programs::cuda::{self, check, name};

const MIB: u64 = 1 << 20;

/// Allocates all but `leave` bytes and waits for its standard input to end.
pub fn bystander(leave: u64, ordinal: i32) -> ExitCode {
    match fill(leave, ordinal) {
        Ok(()) => {
            println!("ready");
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            ExitCode::SUCCESS
        }
        Err(code) => {
            println!("{}", name(code));
            ExitCode::FAILURE
        }
    }
}

fn fill(leave: u64, ordinal: i32) -> Result<(), CUresult> {
    cuda::start(ordinal)?;
    let mut chunk = 4096 * MIB;
    while chunk >= 2 * MIB {
        if cuda::memory()?.0 as u64 >= leave + chunk {
            let mut address = 0;
            // SAFETY: the out-pointer is valid.
            check(unsafe { sys::cuMemAlloc_v2(&raw mut address, chunk as usize) })?;
        } else {
            chunk /= 2;
        }
    }
    Ok(())
}

/// The bystander process, which ends when this is dropped.
pub struct Bystander(Child);

impl Bystander {
    pub fn start(leave: u64, ordinal: i32) -> Result<Bystander, String> {
        let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
        command.args(["--bystander", "--leave", &leave.to_string(), "--gpu", &ordinal.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut line = String::new();
        let output = process.stdout.take().ok_or("no pipe")?;
        let bystander = Bystander(process);
        BufReader::new(output).read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim() == "ready" { Ok(bystander) } else { Err(format!("the bystander: {line}")) }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
