//! Who was refused, held back or reported within the last hour. Of one container and kind there is one event, which says how often.

use std::collections::HashMap;

use crate::violations::Kind as Violation;

/// Time after which an event is forgotten, in seconds.
const MAX_AGE: f64 = 3600.0;
/// Events of one kind that are kept. The oldest one is forgotten for one more.
const MAX_OF_KIND: usize = 200;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The monitor reported a violation.
    Violation(Violation),
    /// The monitor ended a process.
    Ended,
    /// The memory limit refused a request.
    Refused,
    /// Launches waited for the limit on GPU time or for a turn.
    HeldBack,
}

impl Kind {
    /// Returns the kind's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Violation(kind) => kind.name(),
            Self::Ended => "ended",
            Self::Refused => "refused",
            Self::HeldBack => "held_back",
        }
    }
}

/// Subject of an event: a container's directory name and creation time, the UUID of a GPU or none, and what happened.
pub type Key = (String, u64, String, Kind);

/// Something that happened, once or repeatedly.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Number of the event.
    pub number: u64,
    /// Display name of the container.
    pub name: String,
    /// Time of the first and of the last time, in seconds since 1970.
    pub between: (f64, f64),
    /// How often; for [`Kind::HeldBack`], for how many nanoseconds.
    pub count: u64,
}

/// Events of the last hour.
#[derive(Debug, Default)]
pub struct Events {
    known: HashMap<Key, Event>,
    last_number: u64,
}

impl Events {
    /// Counts something that happened at a time, in seconds since 1970.
    pub fn count(&mut self, key: Key, name: &str, now: f64, count: u64) {
        if count == 0 {
            return;
        }
        if !self.known.contains_key(&key) {
            self.make_room(key.3);
            self.last_number += 1;
            let event = Event { number: self.last_number, name: name.to_owned(), between: (now, now), count: 0 };
            self.known.insert(key.clone(), event);
        }
        if let Some(event) = self.known.get_mut(&key) {
            event.between.1 = now;
            event.count = event.count.saturating_add(count);
        }
    }

    /// Notes that something goes on that was counted before.
    pub fn go_on(&mut self, key: &Key, now: f64) {
        if let Some(event) = self.known.get_mut(key) {
            event.between.1 = now;
        }
    }

    /// Forgets what is too old.
    pub fn forget(&mut self, now: f64) {
        self.known.retain(|_, event| (now - event.between.1).abs() <= MAX_AGE);
    }

    /// Returns all events.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Event)> {
        self.known.iter()
    }

    fn make_room(&mut self, kind: Kind) {
        let of_kind = || self.known.iter().filter(|(key, _)| key.3 == kind);
        if of_kind().count() < MAX_OF_KIND {
            return;
        }
        let oldest = of_kind().min_by(|(_, a), (_, b)| a.between.1.total_cmp(&b.between.1)).map(|(key, _)| key.clone());
        oldest.map(|key| self.known.remove(&key));
    }
}
