//! `vgpu monitor`: looks several times a second, judges, answers HTTP, keeps HAMi's files, and gives turns.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use vgpu_config::policy::OnViolation;
use vgpu_oci_hook::state::CONTAINERS;

use crate::enforce::{self, Kind, Violation, ViolationDetector};
use crate::hami_region::RegionFiles;
use crate::http::{self, Exposition};
use crate::inventory;
use crate::latest::Latest;
use crate::metrics::{Dialect, Tally};
use crate::observer::Observer;
use crate::snapshot::Snapshot;
use crate::trace::log_dir::LogWriters;

/// How long between two looks: with three looks, whatever is wrong is told within two seconds.
const INTERVAL: Duration = Duration::from_millis(400);

/// What the operator wants.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the host's state is.
    pub state_dir: PathBuf,
    /// Where to answer HTTP.
    pub listen: SocketAddr,
    /// This machine's name in the metrics.
    pub node: String,
    /// Which of HAMi's names to use.
    pub dialect: Dialect,
    /// What to do about violations.
    pub on_violation: OnViolation,
    /// How long they may last, where they are ended.
    pub grace: Duration,
    /// Whether to give tenants turns.
    pub turns: bool,
}

/// Runs until `stop` is set. `say` gets lines for the log.
///
/// # Errors
/// The address cannot be listened on.
pub fn run(settings: &Settings, stop: &Arc<AtomicBool>, say: &(dyn Fn(&str) + Sync)) -> io::Result<()> {
    let latest = Arc::new(Latest::default());
    let told = |error| io::Error::other(format!("cannot listen on {}: {error}", settings.listen));
    let listener = TcpListener::bind(settings.listen).map_err(told)?;
    let exposition = Exposition { node: settings.node.clone(), dialect: settings.dialect };
    let server = http::Server::start(listener, exposition, Arc::clone(&latest))?;
    say(&format!("metrics at http://{}/metrics", server.address()));
    let mut observer = Observer::new(&settings.state_dir);
    if let Some(why) = observer.nvml_error() {
        say(&format!("NVML: {why}; until then nobody can tell from outside what containers hold"));
    }
    let arbiter = settings.turns.then(|| {
        let (folder, stop) = (settings.state_dir.join(CONTAINERS), Arc::clone(stop));
        thread::spawn(move || vgpu_arbiter::service::run(&folder, &stop))
    });
    // RegionFiles in containers may be on file systems that never answer; that is nobody else's trouble.
    let (to_files, snapshots) = mpsc::sync_channel::<Arc<Snapshot>>(1);
    thread::spawn(move || {
        let mut files = RegionFiles::default();
        for snapshot in snapshots {
            files.update(&snapshot).iter().for_each(|problem| eprintln!("vgpu monitor: {problem}"));
        }
    });
    let (to_traces, traced) = mpsc::sync_channel::<Arc<Snapshot>>(1);
    let mut followers = LogWriters::new(&settings.state_dir);
    let traces = thread::spawn(move || {
        traced.iter().for_each(|snapshot| followers.update(&snapshot));
        followers.finish();
    });
    let mut judge = ViolationDetector::new(settings.grace);
    let (start, mut known) = (Instant::now(), None);
    while !stop.load(Relaxed) {
        if known.as_ref() != Some(observer.inventory()) && observer.nvml_error().is_none() {
            match inventory::write(&settings.state_dir, observer.inventory()) {
                Ok(_) => known = Some(observer.inventory().clone()),
                Err(why) => say(&why.to_string()),
            }
        }
        let looked = Instant::now();
        let snapshot = Arc::new(observer.sample());
        let violations = judge.judge(&snapshot, start.elapsed());
        let ended = act(settings, &violations, &observer, say);
        latest.publish(Arc::clone(&snapshot), looked, |tallies| count(tallies, &violations, &ended));
        // Whoever is still busy with the one before gets the next one.
        let _ = to_files.try_send(Arc::clone(&snapshot));
        let _ = to_traces.try_send(snapshot);
        thread::sleep(INTERVAL.saturating_sub(looked.elapsed()));
    }
    drop((server, to_traces));
    let _ = traces.join();
    if let Some(arbiter) = arbiter {
        let _ = arbiter.join();
    }
    Ok(())
}

/// Tells of what is new, and ends whoever is due if the operator wants that. Gives the places of the containers whose processes were ended.
fn act(settings: &Settings, violations: &[Violation], observer: &Observer, say: &(dyn Fn(&str) + Sync)) -> Vec<String> {
    let mut ended = Vec::new();
    for violation in violations {
        if violation.new {
            say(&describe(violation));
        }
        if !violation.due || settings.on_violation != OnViolation::Kill {
            continue;
        }
        for offender in &violation.offenders {
            let who = format!("process {} ({}) of container {}", offender.pid, offender.name, violation.name);
            match enforce::kill(offender, |process| observer.is_of(process, &violation.place)) {
                Ok(false) => say(&format!("{who} has ended by itself, or is elsewhere by now")),
                Ok(true) => {
                    say(&format!("ended {who}: {}", violation.kind.name()));
                    ended.push(violation.place.clone());
                }
                Err(why) => say(&format!("cannot end {who}: {why}")),
            }
        }
    }
    ended
}

fn describe(violation: &Violation) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let allowed = violation.allowed.map_or_else(|| "no limit".to_owned(), |bytes| format!("{} MiB allowed", mib(bytes)));
    let what = match violation.kind {
        Kind::Over => "holds more memory than it may",
        Kind::Bypass => "uses a GPU past the library",
    };
    let who: Vec<String> =
        violation.offenders.iter().map(|one| format!("{} ({}, {} MiB)", one.pid, one.name, mib(one.held.unwrap_or(0)))).collect();
    format!(
        "container {} ({}) {what}: {} MiB held on {}, {allowed}; processes: {}",
        violation.name,
        violation.id,
        mib(violation.held),
        violation.uuid,
        who.join(", ")
    )
}

fn count(tallies: &mut HashMap<String, Tally>, violations: &[Violation], ended: &[String]) {
    tallies.values_mut().for_each(|tally| tally.lasting = [0; 2]);
    for violation in violations {
        let tally = tallies.entry(violation.place.clone()).or_default();
        let place = Tally::place(violation.kind);
        if let Some(lasting) = tally.lasting.get_mut(place) {
            *lasting += 1;
        }
        if let Some(found) = tally.found.get_mut(place) {
            *found += u64::from(violation.new);
        }
    }
    for place in ended {
        tallies.entry(place.clone()).or_default().ended += 1;
    }
}
