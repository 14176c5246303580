//! A row of the table and its checks.

use vgpu_test_programs::methods::Method;

use crate::trial::Outcome;

/// Percentage of the memory left after the context that must be obtained.
const ENOUGH: f64 = 99.5;
const MIB: f64 = (1 << 20) as f64;

/// A method, a chunk size and the outcome.
pub struct Row {
    pub method: &'static Method,
    pub chunk: u64,
    pub limit: u64,
    pub outcome: Outcome,
    /// The outcome without the library, with as much memory free.
    pub native: Option<Outcome>,
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / MIB)
}

impl Row {
    pub fn new(method: &'static Method, chunk: u64, limit: u64, outcome: Outcome) -> Row {
        Row { method, chunk, limit, outcome, native: None }
    }

    fn is_missing(&self) -> bool {
        self.outcome.refused.ends_with("(missing)")
    }

    /// Returns the bytes left when the method began.
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.outcome.start)
    }

    /// Returns the percentage of them that the method itself obtained.
    fn share(&self) -> f64 {
        percent(self.outcome.obtained + self.outcome.smaller, self.left())
    }

    fn native_share(&self) -> Option<f64> {
        let native = self.native.as_ref()?;
        Some(percent(native.obtained + native.smaller, native.free))
    }

    fn native_has_more(&self) -> bool {
        let got = |outcome: &Outcome| outcome.obtained + outcome.smaller;
        self.native.as_ref().is_some_and(|native| got(native) > got(&self.outcome))
    }

    /// Returns the bytes that the process took of those left. NVML lists some memory for no process; then the size of odd chunks is not
    /// known and counts as requested.
    fn taken(outcome: &Outcome) -> u64 {
        let Outcome { start, obtained, smaller, rest, end, .. } = outcome;
        (*end).max(start + obtained + smaller + rest) - start
    }

    /// Returns whether memory stayed free that no call could get.
    fn is_short(&self) -> bool {
        percent(Row::taken(&self.outcome), self.left()) < ENOUGH && (self.is_even() || self.method.name != "managed")
    }

    /// Returns whether the chunk is a multiple of 1 MiB; other chunks waste part of a granule.
    fn is_even(&self) -> bool {
        self.chunk >= 1 << 20 && self.chunk.is_multiple_of(1 << 20)
    }

    /// Returns whether a native run says more. Managed memory is left out: it can exceed what the GPU has.
    pub fn wants_native(&self) -> bool {
        self.is_even() && !self.is_missing() && self.outcome.fault.is_none() && self.method.name != "managed" && self.share() < ENOUGH
    }

    /// Returns what is wrong with the row.
    pub fn fault(&self) -> Option<String> {
        let Outcome { refused, peak, start, fault, .. } = &self.outcome;
        if let Some(fault) = fault {
            return Some(fault.clone());
        }
        if *peak > self.limit {
            return Some(format!("NVML listed {} MiB", mib(*peak)));
        }
        if self.is_missing() {
            return None;
        }
        if refused != "CUDA_ERROR_OUT_OF_MEMORY" && refused != "CUDA_SUCCESS" {
            return Some("an unexpected code".into());
        }
        if self.is_short() {
            return Some(format!("only {} MiB in all", mib(start + Row::taken(&self.outcome))));
        }
        let natively = self.native_share();
        match natively {
            // In bytes as well: natively less may have been free.
            Some(natively) if natively > self.share() + 0.5 && self.native_has_more() => Some("natively more is obtained".into()),
            None if self.is_even() && self.method.exact && self.share() < ENOUGH => Some("too little".into()),
            _ => None,
        }
    }

    /// Formats the row of the table.
    pub fn line(&self) -> String {
        let outcome = &self.outcome;
        let chunk = match self.chunk {
            0 => "-".into(),
            chunk if chunk < 1 << 20 => format!("{} KiB", chunk >> 10),
            chunk if self.is_even() => format!("{} MiB", chunk >> 20),
            chunk => format!("{} MiB + {} B", chunk >> 20, chunk & ((1 << 20) - 1)),
        };
        let (calls, refused) = (self.method.calls, &outcome.refused);
        let verdict = self.fault().map_or_else(|| "ok".into(), |fault| format!("**{fault}**"));
        if self.is_missing() {
            let code = refused.trim_end_matches(" (missing)");
            return format!("| {calls} | {chunk} | - | - | not offered: {code} | - | {} | - | {verdict} |", mib(outcome.peak));
        }
        format!(
            "| {calls} | {chunk} | {} + {} | {:.1} | {refused} | {} | {} | {} | {verdict} |",
            mib(outcome.obtained),
            mib(outcome.smaller),
            self.share(),
            mib(outcome.rest),
            mib(outcome.peak),
            self.native_share().map_or_else(|| "-".into(), |share| format!("{share:.1}")),
        )
    }
}
