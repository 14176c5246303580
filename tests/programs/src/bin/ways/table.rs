//! The table.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::row::Row;

/// Prints all rows, and what they mean.
pub fn print(rows: &[Row], gpu: &str, limit: u64) {
    let wrong = rows.iter().filter(|row| row.fault().is_some()).count();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    println!("# Every way to take device memory\n");
    println!("- GPU: {gpu}");
    println!("- Limit: {} MiB", limit >> 20);
    println!("- Seconds since 1970: {now}");
    println!("- Result: {} of {} as they should be\n", rows.len() - wrong, rows.len());
    println!(
        "Obtained is what the way itself gave: in chunks, and then in smaller ones of whole MiB. The percentage is of what was left when\n\
         the way had its context and whatever else it needs; natively, of what was free. The rest is what plain `cuMemAlloc` gave\n\
         afterwards. NVML at most is the sum over the processes, read without the library all the time.\n"
    );
    println!("| way | chunk | obtained, MiB | % | refused with | the rest, MiB | NVML at most, MiB | % natively | |");
    println!("|---|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{}", row.line()));
}
