//! Processes that were seen before, so that most of them need not be read anew.

use std::collections::HashMap;
use std::sync::Arc;

use crate::processes::Process;

/// Looks after which a process is read anew, though it still exists: it can be moved to another cgroup.
const REFRESH_LOOKS: u32 = 10;

/// Processes by PID.
#[derive(Debug, Default)]
pub struct ProcessTable {
    known: HashMap<u32, (Arc<Process>, u32)>,
    look: u32,
}

impl ProcessTable {
    /// Begins a look: forgets the processes that the last one did not ask for.
    pub fn begin_look(&mut self) {
        let last = self.look;
        self.known.retain(|_, (_, asked)| *asked == last);
        self.look = self.look.wrapping_add(1);
    }

    /// Returns the process with this PID. `None` if there is none.
    pub fn get(&mut self, pid: u32) -> Option<Arc<Process>> {
        let look = self.look;
        if let Some((process, asked)) = self.known.get_mut(&pid)
            && !look.wrapping_add(pid).is_multiple_of(REFRESH_LOOKS)
            && (*asked == look || Arc::make_mut(process).refresh())
        {
            *asked = look;
            return Some(Arc::clone(process));
        }
        let process = Arc::new(Process::read(pid)?);
        self.known.insert(pid, (Arc::clone(&process), look));
        Some(process)
    }

    /// Returns a process that was asked for in this look or in the last one, even if it has exited since.
    #[must_use]
    pub fn known(&self, pid: u32) -> Option<Arc<Process>> {
        self.known.get(&pid).map(|(process, _)| Arc::clone(process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_processes_are_reused_until_they_end() {
        let mut table = ProcessTable::default();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, this) = (child.id(), std::process::id());
        for _ in 0..2 * REFRESH_LOOKS {
            table.begin_look();
            let found = table.get(pid).unwrap();
            assert_eq!(Some(&*found), Process::read(pid).as_ref());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for _ in 0..REFRESH_LOOKS {
            table.begin_look();
            assert!(table.get(pid).is_none() && table.get(this).is_some());
        }
        assert_eq!(table.known.len(), 1, "the ended process is forgotten");
    }
}
