//! Creates a limits page and a region in a folder, to run a program under the library without a container:
//! `mkshare DIR MEMORY_BYTES CORES`, then `VGPU_DIR=DIR LD_PRELOAD=libvgpu.so program`. Several pairs are for the first GPU, the second GPU, and so
//! on. `mkshare show DIR` prints the accounts. If `VGPU_TRACED` is set, the program is traced too; if `VGPU_DEBUG` is set, the log level is debug; if
//! `VGPU_EVICTABLE` is set, its memory may move to the host.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::limits::{GpuLimit, LimitsPage, LogLevel, Selector};
use vgpu_region::map;
use vgpu_region::trace::FILE_SIZE;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["show", folder] => show(Path::new(folder)),
        [folder, ref figures @ ..] if !figures.is_empty() && figures.len().is_multiple_of(2) => make(Path::new(folder), figures),
        _ => panic!("usage: mkshare DIR MEMORY_BYTES CORES [MEMORY_BYTES CORES]... | mkshare show DIR"),
    }
}

fn make(folder: &Path, figures: &[&str]) {
    let limits = figures.chunks_exact(2).enumerate().map(|(index, pair)| {
        let limit = GpuLimit::new(if figures.len() == 2 { Selector::All } else { Selector::Index(index as u32) });
        limit.memory.store(pair[0].parse().expect("bytes"), Relaxed);
        limit.cores.store(pair[1].parse().expect("percent"), Relaxed);
        if std::env::var_os("VGPU_EVICTABLE").is_some() {
            limit.overcommit.store(GpuLimit::EVICTABLE, Relaxed);
        }
        limit
    });
    let level = if std::env::var_os("VGPU_DEBUG").is_some() { LogLevel::Debug } else { LogLevel::Warn };
    std::fs::create_dir_all(folder).expect("folder");
    let page = LimitsPage::new(limits).with_log_level(level);
    page.set_traced(std::env::var_os("VGPU_TRACED").is_some());
    std::fs::write(folder.join("limits"), page.as_bytes()).expect("limits");
    let region = std::fs::File::create(folder.join("region")).expect("region");
    map::format(region.as_raw_fd()).expect("region");
    if std::env::var_os("VGPU_TRACED").is_some() {
        region.set_len(FILE_SIZE).expect("rings");
    }
}

fn show(folder: &Path) {
    let path = CString::new(folder.join("region").to_str().expect("path")).expect("path");
    let region = map::region(&path).expect("region");
    let census = map::Census::open(&path);
    for (place, account) in region.gpus.iter().enumerate() {
        let Some(uuid) = account.uuid() else { continue };
        println!("{uuid} total {} refused {}", account.total.bytes(), account.refused.load(Relaxed));
        for (index, slot) in region.used_slots() {
            let charge = &slot.gpus[place];
            println!(
                "  slot {index} pid {} {} held {} in flight {} overhead {} managed {} (pages)",
                slot.pid.load(Relaxed),
                if census.is_dead(index) { "dead" } else { "alive" },
                charge.charge.held(),
                charge.charge.in_flight(),
                charge.overhead.load(Relaxed),
                charge.managed.load(Relaxed)
            );
        }
    }
}
