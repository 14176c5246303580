//! The tables of the report.

/// The rows printed so far.
#[derive(Default)]
pub struct Report {
    /// Number of failed rows.
    pub failed: u32,
}

impl Report {
    /// Prints a row.
    pub fn row(&mut self, what: &str, cells: &[String], good: bool) {
        self.failed += u32::from(!good);
        println!("| {what} | {} | {} |", cells.join(" | "), if good { "ok" } else { "**WRONG**" });
    }
}
