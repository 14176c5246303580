//! Processes that were seen before, so that most of them need not be read anew.
//!
//! The kernel tells when one of them exits: each has a descriptor in one epoll instance. So a look costs nothing for those that go on.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};

use crate::processes::Process;

/// Looks after which a process is read anew, though it still exists: it can be moved to another cgroup, and have another name.
const REFRESH_LOOKS: u32 = 10;
/// Exits that one call returns at most.
const EVENTS: usize = 64;
/// Part of the descriptors that this process may open that the table takes at most. Processes beyond are read at each look.
const DESCRIPTOR_SHARE: u64 = 4;

/// Processes by PID.
#[derive(Debug)]
pub struct ProcessTable {
    known: HashMap<u32, Entry>,
    look: u32,
    exits: Option<OwnedFd>,
    /// Descriptors in `known`, and the most that there may be.
    watched: usize,
    most_watched: usize,
}

#[derive(Debug)]
struct Entry {
    process: Arc<Process>,
    /// The look that asked for it last.
    asked: u32,
    /// Descriptor of the process, in the epoll instance. `None` if it has exited, or cannot be watched.
    watch: Option<OwnedFd>,
}

impl Default for ProcessTable {
    fn default() -> Self {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / DESCRIPTOR_SHARE;
        Self {
            known: HashMap::new(),
            look: 0,
            exits: epoll::create(epoll::CreateFlags::CLOEXEC).ok(),
            watched: 0,
            most_watched: usize::try_from(most).unwrap_or(usize::MAX),
        }
    }
}

impl ProcessTable {
    /// Begins a look: forgets the processes that the last one did not ask for, and learns which have exited.
    pub fn begin_look(&mut self) {
        let last = self.look;
        // A descriptor leaves the epoll instance when it is closed.
        self.known.retain(|_, entry| entry.asked == last);
        self.look = self.look.wrapping_add(1);
        self.collect_exits();
        self.watched = self.known.values().filter(|entry| entry.watch.is_some()).count();
    }

    fn collect_exits(&mut self) {
        let Some(exits) = &self.exits else { return };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        while epoll::wait(exits, spare_capacity(&mut events), Some(&Timespec::default())).is_ok() {
            let exited = events.drain(..).filter_map(|event| self.known.get_mut(&(event.data.u64() as u32))?.watch.take());
            // These are closed here, so the next call tells of others.
            if exited.count() == 0 {
                break;
            }
        }
    }

    /// Returns the process with this PID. `None` if there is none.
    pub fn get(&mut self, pid: u32) -> Option<Arc<Process>> {
        let look = self.look;
        if let Some(entry) = self.known.get_mut(&pid)
            && (entry.asked == look || !look.wrapping_add(pid).is_multiple_of(REFRESH_LOOKS))
            && (entry.asked == look || entry.watch.is_some() || Arc::make_mut(&mut entry.process).refresh())
        {
            entry.asked = look;
            return Some(Arc::clone(&entry.process));
        }
        self.read(pid)
    }

    /// Reads a process anew.
    fn read(&mut self, pid: u32) -> Option<Arc<Process>> {
        let known = self.known.remove(&pid);
        self.watched -= usize::from(known.as_ref().is_some_and(|entry| entry.watch.is_some()));
        // Before the process is read: should it exit and another one get its PID in between, the descriptor tells of the exit.
        let watch = known.and_then(|entry| entry.watch).or_else(|| self.watch(pid));
        let process = Arc::new(Process::read(pid)?);
        self.watched += usize::from(watch.is_some());
        self.known.insert(pid, Entry { process: Arc::clone(&process), asked: self.look, watch });
        Some(process)
    }

    /// Adds a process to the epoll instance.
    fn watch(&self, pid: u32) -> Option<OwnedFd> {
        let exits = self.exits.as_ref().filter(|_| self.watched < self.most_watched)?;
        let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        epoll::add(exits, &process, epoll::EventData::new_u64(u64::from(pid)), epoll::EventFlags::IN).ok()?;
        Some(process)
    }

    /// Returns a process that was asked for in this look or in the last one, even if it has exited since.
    #[must_use]
    pub fn known(&self, pid: u32) -> Option<Arc<Process>> {
        self.known.get(&pid).map(|entry| Arc::clone(&entry.process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_processes_are_reused_until_they_end() {
        for most_watched in [1000, 0] {
            let mut table = ProcessTable { most_watched, ..ProcessTable::default() };
            let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            let (pid, this) = (child.id(), std::process::id());
            for _ in 0..2 * REFRESH_LOOKS {
                table.begin_look();
                let found = table.get(pid).unwrap();
                assert_eq!(Some(&*found), Process::read(pid).as_ref());
                assert_eq!(table.known.get(&pid).unwrap().watch.is_some(), most_watched > 0);
            }
            child.kill().unwrap();
            // Until it is waited for, it is a zombie.
            loop {
                table.begin_look();
                if table.get(pid).unwrap().has_exited {
                    break;
                }
            }
            child.wait().unwrap();
            for _ in 0..REFRESH_LOOKS {
                table.begin_look();
                assert!(table.get(pid).is_none() && table.get(this).is_some());
            }
            assert_eq!((table.known.len(), table.watched), (1, most_watched.min(1)), "the ended process is forgotten");
        }
    }

    #[test]
    fn another_process_with_the_pid_is_seen() {
        let mut table = ProcessTable::default();
        table.begin_look();
        let this = std::process::id();
        let now = table.get(this).unwrap();
        // What the table would have if the PID had been reused: a process that has exited.
        table.known.get_mut(&this).unwrap().process = Arc::new(Process { start_time: now.start_time - 1, ..(*now).clone() });
        table.known.get_mut(&this).unwrap().watch = None;
        table.begin_look();
        assert_eq!(table.get(this).unwrap().start_time, now.start_time);
    }
}
