//! The table.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::row::Row;

/// Prints all rows and what the columns mean.
pub fn print(rows: &[Row], gpu: &str, limit: u64) {
    let wrong = rows.iter().filter(|row| row.fault().is_some()).count();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    println!("# Every method to allocate device memory\n");
    println!("- GPU: {gpu}");
    println!("- Limit: {} MiB", limit >> 20);
    println!("- Seconds since 1970: {now}");
    println!("- Result: {} of {} pass\n", rows.len() - wrong, rows.len());
    println!(
        "Obtained is what the method itself got: in chunks, and then in smaller ones of whole MiB. The percentage is of what was left when\n\
         the method had its context and whatever else it needs; natively, of what was free. The remainder is what plain `cuMemAlloc` got\n\
         afterwards. NVML peak is the maximum of the sum over the processes, sampled without the library.\n"
    );
    println!("| method | chunk | obtained, MiB | % | error | remainder, MiB | NVML peak, MiB | % natively | |");
    println!("|---|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{}", row.line()));
}
