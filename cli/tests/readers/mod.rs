//! Readers of vgpu's exports, written from the formats' specifications and independent of vgpu's code.

use std::collections::{BTreeMap, BTreeSet};

/// Sample in Prometheus's text format.
#[derive(Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> String {
        self.labels.get(name).cloned().unwrap_or_default()
    }

    pub fn is_of(&self, container: &str) -> bool {
        self.label("container") == container
    }
}

/// Parses the text format strictly.
///
/// # Panics
/// The text has an error for Prometheus or for `promtool check metrics`.
pub fn samples(text: &str) -> Vec<Sample> {
    assert!(text.ends_with('\n'), "the last line has no line feed");
    let (mut helped, mut types, mut finished) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
    let (mut current, mut seen, mut found) = (String::new(), BTreeSet::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (keyword, rest) = rest.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            let (name, rest) = rest.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            if keyword == "HELP" {
                assert!(helped.insert(name.to_owned()) && !rest.is_empty(), "{line:?}");
            } else {
                assert!(keyword == "TYPE" && ["counter", "gauge"].contains(&rest), "{line:?}");
                assert!(types.insert(name.to_owned(), rest.to_owned()).is_none(), "{line:?}");
                assert_eq!(rest == "counter", name.ends_with("_total"), "{line:?}");
            }
            continue;
        }
        let sample = sample(line).unwrap_or_else(|| panic!("{line:?}"));
        assert!(helped.contains(&sample.name) && types.contains_key(&sample.name), "{line:?}");
        if sample.name != current {
            assert!(finished.insert(sample.name.clone()), "{line:?}: the samples of a metric are not contiguous");
            current.clone_from(&sample.name);
        }
        assert!(seen.insert((sample.name.clone(), sample.labels.clone())), "{line:?}: duplicate sample");
        found.push(sample);
    }
    found
}

fn is_name(text: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    text.starts_with(letter) && text.chars().all(|next| letter(next) || next.is_ascii_digit())
}

fn sample(line: &str) -> Option<Sample> {
    let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
    let mut labels = BTreeMap::new();
    if let Some(mut left) = rest.strip_prefix('{') {
        while !left.starts_with('}') {
            let (label, value) = left.split_once("=\"")?;
            let (value, after) = quoted(value)?;
            if !is_name(label) || labels.insert(label.to_owned(), value).is_some() {
                return None;
            }
            left = after.strip_prefix(',').unwrap_or(after);
        }
        rest = left.strip_prefix('}')?;
    }
    let value = rest.strip_prefix(' ')?;
    (is_name(name) && !value.contains(' ')).then(|| Some(Sample { name: name.to_owned(), labels, value: value.parse().ok()? }))?
}

/// Returns a label's value up to its closing quote, and the rest of the text.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            }),
            letter => value.push(letter),
        }
    }
    None
}

/// HAMi's `device_memory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    pub context: u64,
    pub module: u64,
    pub data: u64,
    pub offset: u64,
    pub total: u64,
    unused: [u64; 3],
}

/// HAMi's `device_util_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DeviceUtilization([u64; 6]);

/// HAMi's `shrreg_proc_slot_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Slot {
    pid: i32,
    host_pid: i32,
    used: [DeviceMemory; 16],
    monitor_used: [u64; 16],
    utilization: [DeviceUtilization; 16],
    status: i32,
    unused: [u64; 3],
}

/// HAMi's `shared_region_t`, version 1, with a `sem_t` of 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    initialized: i32,
    version: [u32; 2],
    sm_init: i32,
    owner: usize,
    semaphore: [u64; 4],
    device_num: u64,
    uuids: [[u8; 96]; 16],
    limit: [u64; 16],
    sm_limit: [u64; 16],
    procs: [Slot; 1024],
    proc_num: i32,
    utilization_switch: i32,
    recent_kernel: i32,
    priority: i32,
    last_kernel_time: u64,
    unused: [u64; 4],
}

/// Process in HAMi's region.
#[derive(Debug)]
pub struct SharedProcess {
    pub pid: i32,
    pub host_pid: i32,
    pub used: Vec<DeviceMemory>,
}

/// Content of HAMi's region.
#[derive(Debug)]
pub struct SharedRegion {
    pub uuids: Vec<String>,
    pub limits: Vec<u64>,
    pub sm_limits: Vec<u64>,
    pub processes: Vec<SharedProcess>,
    pub priority: i32,
}

impl SharedRegion {
    /// Returns the memory of each process on the first two devices, in bytes.
    pub fn totals(&self) -> BTreeMap<i32, [u64; 2]> {
        self.processes.iter().map(|process| (process.pid, [process.used[0].total, process.used[1].total])).collect()
    }
}

/// Reads HAMi's region like its monitor; `None` if it is not initialized.
pub fn shared_region(bytes: &[u8]) -> Option<SharedRegion> {
    if bytes.len() != size_of::<Region>() {
        return None;
    }
    let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    // SAFETY: the buffer has the structure's size and alignment, and any bytes are valid for its integers.
    let region = unsafe { &*words.as_ptr().cast::<Region>() };
    if region.initialized != 19_920_718 || region.version[0] != 1 {
        return None;
    }
    let count = region.device_num as usize;
    let text = |uuid: &[u8; 96]| String::from_utf8_lossy(uuid.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
    let slots = region.procs.iter().take(region.proc_num as usize);
    Some(SharedRegion {
        uuids: region.uuids[..count].iter().map(text).collect(),
        limits: region.limit[..count].to_vec(),
        sm_limits: region.sm_limit[..count].to_vec(),
        processes: slots.map(|slot| SharedProcess { pid: slot.pid, host_pid: slot.host_pid, used: slot.used[..count].to_vec() }).collect(),
        priority: region.priority,
    })
}
