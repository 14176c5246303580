//! What becomes of tenants' names and figures in the monitor's metrics.

use arbitrary::{Arbitrary, Unstructured};
use vgpu_monitor::metrics::{self, Dialect, Tally};
use vgpu_monitor::snapshot::{ContainerState, Gpu, GpuProcess, Share, Snapshot};

/// A container as its author and its processes describe it.
#[derive(Arbitrary, Debug)]
struct Container {
    id: u8,
    container: Option<String>,
    pod: Option<String>,
    namespace: Option<String>,
    damaged: Option<String>,
    is_tampered: bool,
    shares: Vec<Figures>,
}

/// Figures of a share: limits of the operator, claims of the tenant, observations.
#[derive(Arbitrary, Debug)]
struct Figures {
    gpu: u8,
    limits: (Option<u64>, Option<u8>),
    claims: [u64; 8],
    seen: (Option<u64>, Option<u16>, Option<u64>),
    first_refusal: Option<u32>,
    processes: Vec<(u32, String, Option<u64>, u64)>,
}

/// Returns the share that the observer makes of such figures.
fn share(figures: &Figures) -> Share {
    let [charged, booked, overhead, managed, spilled, refused, used_ns, throttled_ns] = figures.claims;
    let (held, observed, observed_ns) = figures.seen;
    let process = |(pid, name, charged, overhead): &(u32, String, Option<u64>, u64)| GpuProcess {
        pid: (pid % 2 == 0).then_some(*pid),
        inner_pid: *pid,
        name: name.clone(),
        charged: *charged,
        overhead: *overhead,
        ..GpuProcess::default()
    };
    Share {
        uuid: uuid(figures.gpu),
        memory_limit: figures.limits.0,
        cores: figures.limits.1.map(u32::from),
        charged,
        booked,
        overhead,
        managed,
        spilled,
        held,
        refused,
        first_refusal: figures.first_refusal.map(f64::from),
        used_ns,
        throttled_ns,
        observed: observed.map(f64::from),
        observed_ns,
        processes: figures.processes.iter().map(process).collect(),
        ..Share::default()
    }
}

/// Returns the UUID of one of four GPUs.
fn uuid(gpu: u8) -> String {
    format!("GPU-0000000{}-0000-0000-0000-000000000000", gpu % 4)
}

/// Renders a snapshot as metrics. Asserts that the text is well-formed whatever the names are, and that the parts of the monitor hand the
/// same snapshot to each other.
pub fn snapshot(data: &[u8]) {
    let Ok((containers, legacy)) = <(Vec<Container>, bool)>::arbitrary(&mut Unstructured::new(data)) else { return };
    let state = |container: &Container| ContainerState {
        id: format!("id-{}", container.id),
        dir_name: format!("dir-{}", container.id),
        container: container.container.clone(),
        pod: container.pod.clone(),
        namespace: container.namespace.clone(),
        damaged: container.damaged.clone(),
        is_tampered: container.is_tampered,
        gpus: container.shares.iter().take(2).map(share).collect(),
        ..ContainerState::default()
    };
    let gpu = |index: u8| Gpu { index: index.into(), uuid: uuid(index), name: "A".to_owned(), memory: 1 << 34, ..Gpu::default() };
    let snapshot = Snapshot {
        time: 1.0,
        gpus: (0..2).map(gpu).collect(),
        containers: containers.iter().take(3).map(state).collect(),
        ..Snapshot::default()
    };
    for container in &snapshot.containers {
        assert!(!container.name().contains(char::is_control), "{:?}", container.name());
    }
    let text = serde_json::to_vec(&snapshot).expect("a snapshot for a mailbox");
    assert_eq!(serde_json::from_slice::<Snapshot>(&text).ok().as_ref(), Some(&snapshot), "the mailbox has another snapshot");
    let dialect = Dialect { scheduler: true, legacy };
    let text = metrics::text(&snapshot, "node", dialect, &[("http", 1)], |_| Tally::default());
    for line in text.lines().filter(|line| !line.starts_with("# ")) {
        assert!(is_sample(line), "{line:?}");
    }
}

/// Returns true if a line is a sample of Prometheus's text format: a name, labels whose values are quoted, a number.
fn is_sample(line: &str) -> bool {
    let is_name = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let Some((name, mut rest)) = line.split_once(['{', ' ']) else { return false };
    if !is_name(name) {
        return false;
    }
    while let Some((label, value)) = rest.split_once("=\"") {
        let mut escaped = false;
        let end = value.find(|letter: char| {
            let is_end = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            is_end
        });
        let Some(end) = end.filter(|_| is_name(label)) else { return false };
        rest = &value[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    rest.trim_start_matches(['}', ' ']).parse::<f64>().is_ok()
}
