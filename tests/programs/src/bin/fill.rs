//! Allocates chunk by chunk until the driver refuses, and prints how much it obtained.
//!
//!     fill --api API --chunk BYTES [--max BYTES] [--value BYTE] [--hold SECONDS] [--gpu ORDINAL]
//!
//! API is a name in [`vgpu_test_programs::methods::METHODS`]. Sizes take K, M, G. With --value the program
//! allocates with cuMemAlloc, and fills each chunk with that byte. The output is one line of JSON, in bytes. Then the
//! program waits for --hold seconds, still holding everything.

use std::process::ExitCode;
use std::time::Duration;

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, sys::CUresult};
use vgpu_test_programs::methods;
use vgpu_test_programs::nvml::Nvml;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if arguments.has("maker") {
        return methods::foreign::maker(arguments.number("gpu", 0) as i32);
    }
    let api = arguments.value("api").unwrap_or("cuMemAlloc");
    let chunk = arguments.number("chunk", 64 << 20);
    let max = arguments.number("max", u64::MAX);
    let ordinal = arguments.number("gpu", 0) as i32;
    let nvml = Nvml::open(ordinal as u32).ok();
    if let Err(code) = cuda::start(ordinal) {
        println!("{{\"api\":\"{api}\",\"obtained\":0,\"count\":0,\"error\":\"{}\",\"at\":\"start\"}}", cuda::name(code));
        return ExitCode::FAILURE;
    }
    let context = nvml.as_ref().and_then(Nvml::own);
    let Some(method) = methods::find(api) else {
        eprintln!("--api {api}: expected one of the names in `ways`");
        return ExitCode::from(2);
    };
    let mut allocate = match (method.prepare)(ordinal) {
        Ok(allocate) => allocate,
        Err(code) => {
            eprintln!("--api {api}: {}", cuda::name(code));
            return ExitCode::FAILURE;
        }
    };
    let (mut obtained, mut count) = (0, 0_u64);
    let mut error = CUresult::CUDA_SUCCESS;
    let filled = |chunk: usize| {
        let mut address = 0;
        // SAFETY: the driver writes the address, and fills the chunk.
        unsafe {
            cuda::check(cuda::sys::cuMemAlloc_v2(&raw mut address, chunk))?;
            cuda::check(cuda::sys::cuMemsetD8_v2(address, arguments.number("value", 0) as u8, chunk))?;
        }
        Ok(chunk as u64)
    };
    while obtained + chunk <= max {
        let allocated = if arguments.value("value").is_some() { filled(chunk as usize) } else { allocate(chunk as usize) };
        match allocated {
            Ok(_) => (obtained, count) = (obtained + chunk, count + 1),
            Err(code) => {
                error = code;
                break;
            }
        }
    }
    let (free, total) = cuda::memory().unwrap_or((0, 0));
    let number = |value: Option<u64>| value.map_or_else(|| "null".to_owned(), |value| value.to_string());
    let nvml_memory = nvml.as_ref().and_then(Nvml::memory);
    println!(
        "{{\"api\":\"{api}\",\"chunk\":{chunk},\"obtained\":{obtained},\"count\":{count},\"error\":\"{}\",\"free\":{free},\"total\":{total},\
         \"nvml_total\":{},\"nvml_used\":{},\"nvml_own\":{},\"context\":{}}}",
        cuda::name(error),
        number(nvml_memory.map(|memory| memory.0)),
        number(nvml_memory.map(|memory| memory.1)),
        number(nvml.as_ref().and_then(Nvml::own)),
        number(context),
    );
    std::thread::sleep(Duration::from_secs(arguments.number("hold", 0)));
    ExitCode::SUCCESS
}
