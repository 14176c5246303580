//! Open connections, of which there is a maximum number.
//!
//! A new connection replaces the oldest one that has no request. So clients that open connections and leave them idle cannot lock out the
//! API server, whose requests last for milliseconds.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::task::AbortHandle;

/// Connection, shared with its task.
#[derive(Default)]
pub struct Entry(AtomicBool);

impl Entry {
    /// Marks the connection as busy until the result is dropped.
    #[must_use]
    pub fn busy(&self) -> Busy<'_> {
        self.0.store(true, Relaxed);
        Busy(self)
    }
}

/// Mark of a connection whose request is being answered.
pub struct Busy<'a>(&'a Entry);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Relaxed);
    }
}

/// Open connections, oldest first.
pub struct Connections {
    max: usize,
    open: VecDeque<(Arc<Entry>, AbortHandle)>,
}

impl Connections {
    /// Returns no connections, of which there will be at most `max`.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max, open: VecDeque::new() }
    }

    /// Spawns the task of a new connection. If there are too many, the oldest idle one is ended, or the oldest if all are busy.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(&mut self, connection: impl FnOnce(Arc<Entry>) -> F) {
        self.open.retain(|(_, task)| !task.is_finished());
        if self.open.len() >= self.max {
            let oldest = self.open.iter().position(|(entry, _)| !entry.0.load(Relaxed)).unwrap_or(0);
            if let Some((_, task)) = self.open.remove(oldest) {
                task.abort();
            }
        }
        let entry = Arc::new(Entry::default());
        let task = tokio::spawn(connection(Arc::clone(&entry)));
        self.open.push_back((entry, task.abort_handle()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::Mutex;

    /// Returns the numbers of the connections that are still open after connections 0 to 3 were opened, of which these are busy.
    async fn open_after(busy: &[usize]) -> Vec<usize> {
        let alive = Arc::new(Mutex::new(Vec::new()));
        /// Removes its number when the connection ends.
        struct Alive(usize, Arc<Mutex<Vec<usize>>>);
        impl Drop for Alive {
            fn drop(&mut self) {
                self.1.lock().unwrap().retain(|number| *number != self.0);
            }
        }
        let mut connections = Connections::new(3);
        for number in 0..4 {
            alive.lock().unwrap().push(number);
            let (guard, is_busy) = (Alive(number, Arc::clone(&alive)), busy.contains(&number));
            connections.spawn(|entry| async move {
                let _guard = guard;
                let _busy = is_busy.then(|| entry.busy());
                pending::<()>().await;
            });
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        alive.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn new_connection_replaces_the_oldest_idle_one() {
        assert_eq!(open_after(&[]).await, [1, 2, 3]);
        assert_eq!(open_after(&[0]).await, [0, 2, 3]);
        assert_eq!(open_after(&[0, 1, 2]).await, [1, 2, 3]);
    }
}
