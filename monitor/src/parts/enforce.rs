//! Part that samples several times a second, responds to violations, and publishes each sample. It waits for no other part, and opens no file
//! of a tenant but its account.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use vgpu_config::Inventory;

use super::launch::Assignment;
use super::mailbox::Mailbox;
use super::publication::{Publication, uptime};
use super::pulse::Pulse;
use crate::damage::DamageLog;
use crate::observer::Observer;
use crate::settings::Settings;
use crate::snapshot::ContainerState;
use crate::violations::ViolationDetector;
use crate::{capabilities, enforcement, inventory, metrics};

/// Time between two samples. A violation counts from the third on, so it is reported within two seconds.
const INTERVAL: Duration = Duration::from_millis(400);

/// Runs until `stop` is set.
///
/// # Errors
/// The part was not started by the supervisor.
pub fn run(mut assignment: Assignment, stop: &AtomicBool) -> io::Result<()> {
    capabilities::restrict_part(&capabilities::ENFORCE);
    assignment.follow_parent()?;
    let [pulse, mailbox, requests] = assignment.descriptors::<3>()?;
    let (mut pulse, mailbox, settings) = (Pulse::from(pulse), Mailbox::<Publication>::from(mailbox), assignment.settings);
    let requests = Mailbox::<Vec<ContainerState>>::from(requests);
    // Counters go on where a former incarnation of this part left them.
    let mut tallies = mailbox.reader()?.read().unwrap_or_default().tallies;
    let mut observer = Observer::new(&settings.state_dir);
    let (mut nvml_error, mut inventory) = (None, None);
    let (mut detector, mut damage) = (ViolationDetector::new(settings.grace), DamageLog::default());
    let start = Instant::now();
    while !stop.load(Relaxed) {
        let (begun, sampled) = (Instant::now(), uptime());
        let snapshot = observer.sample();
        log_nvml(&observer, &mut nvml_error);
        write_inventory(&settings, &observer, &mut inventory);
        damage.update(&snapshot);
        let violations = detector.detect(&snapshot, start.elapsed());
        let ended =
            enforcement::respond(&violations, settings.on_violation, |process, dir_name| observer.is_in_container(process, dir_name));
        let existing: HashSet<&str> = snapshot.containers.iter().map(|container| container.dir_name.as_str()).collect();
        tallies.retain(|dir_name, _| existing.contains(dir_name.as_str()));
        metrics::count_violations(&mut tallies, &violations, &ended);
        let requesting = snapshot.containers.iter().filter(|container| container.requests_files()).cloned().collect();
        if let Err(error) = requests.write(&requesting) {
            error!(%error, "cannot publish the containers that request files");
        }
        if let Err(error) = mailbox.write(&Publication { sampled, snapshot, tallies: tallies.clone() }) {
            error!(%error, "cannot publish the sample");
        }
        pulse.beat();
        thread::sleep(INTERVAL.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

/// Logs a change of NVML's availability. `last` is the error logged last.
fn log_nvml(observer: &Observer, last: &mut Option<String>) {
    match (observer.nvml_error(), &last) {
        (Some(error), last) if last.as_deref() != Some(error) => {
            warn!(error, "NVML is unavailable: memory held by containers cannot be checked from outside");
        }
        (None, Some(_)) => info!("NVML is available"),
        _ => return,
    }
    *last = observer.nvml_error().map(str::to_owned);
}

/// Writes the inventory if NVML's differs from the one written last.
fn write_inventory(settings: &Settings, observer: &Observer, written: &mut Option<Inventory>) {
    if written.as_ref() == Some(observer.inventory()) || observer.nvml_error().is_some() {
        return;
    }
    match inventory::write(&settings.state_dir, observer.inventory()) {
        Ok(_) => *written = Some(observer.inventory().clone()),
        Err(error) => error!(%error, "cannot write the inventory of GPUs"),
    }
}
