//! What the user sees of a snapshot: sorted, filtered, with a container chosen, and with the last seconds remembered.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::{HashMap, VecDeque};
use vgpu_monitor::snapshot::{ContainerState, Share, Snapshot};

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Whoever holds most memory
    Memory,
    /// Whoever uses most of the GPU's time
    Time,
    /// Whoever is held back most
    Throttled,
    /// By name
    Name,
    /// The youngest
    Age,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Memory, Self::Time, Self::Throttled, Self::Name, Self::Age];

    /// In a word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Time => "time",
            Self::Throttled => "throttled",
            Self::Name => "name",
            Self::Age => "age",
        }
    }

    fn next(self) -> Self {
        let place = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL.get((place + 1) % Self::ALL.len()).copied().unwrap_or(self)
    }
}

/// So many looks are remembered.
const REMEMBERED: usize = 120;

/// A container's share of a GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub container: &'a ContainerState,
    pub share: &'a Share,
}

impl Row<'_> {
    /// What it holds by whoever says more: NVML, or its own account.
    pub fn memory(&self) -> u64 {
        self.share.held.unwrap_or(0).max(self.share.charged)
    }

    /// What it may use of the GPU's time, in percent.
    pub fn cores(&self) -> f64 {
        self.share.cores.map_or(100.0, f64::from)
    }
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct View {
    pub snapshot: Snapshot,
    pub sort: Sort,
    pub filter: String,
    /// Whether keys go into the filter.
    pub typing: bool,
    /// The place of the container that is looked at closely.
    pub detail: Option<String>,
    /// The place of the container at the cursor, and the GPU.
    pub chosen: Option<(String, String)>,
    history: HashMap<(String, String), VecDeque<f64>>,
    done: bool,
}

impl View {
    pub fn new(sort: Sort, filter: String) -> Self {
        Self {
            snapshot: Snapshot::default(),
            sort,
            filter,
            typing: false,
            detail: None,
            chosen: None,
            history: HashMap::new(),
            done: false,
        }
    }

    /// Takes a new snapshot. Whoever is gone is forgotten.
    pub fn take(&mut self, snapshot: Snapshot) {
        let mut kept = HashMap::new();
        for container in &snapshot.containers {
            for share in &container.gpus {
                let key = (container.place.clone(), share.uuid.clone());
                let mut past = self.history.remove(&key).unwrap_or_default();
                past.extend(share.utilization.map(|percent| percent / share.cores.map_or(100.0, f64::from)));
                past.drain(..past.len().saturating_sub(REMEMBERED));
                kept.insert(key, past);
            }
        }
        self.history = kept;
        self.snapshot = snapshot;
        let exists = |place: &String| self.snapshot.containers.iter().any(|container| container.place == *place);
        self.detail = self.detail.take().filter(exists);
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The last looks at a share, each of its limit.
    pub fn past(&self, row: &Row<'_>) -> impl DoubleEndedIterator<Item = f64> {
        self.history.get(&(row.container.place.clone(), row.share.uuid.clone())).into_iter().flatten().copied()
    }

    /// The shares of one GPU that the filter lets through, sorted.
    pub fn rows(&self, uuid: &str) -> Vec<Row<'_>> {
        let filter = self.filter.to_lowercase();
        let fits = |container: &&ContainerState| container.name().to_lowercase().contains(&filter) || container.id.contains(&filter);
        let shares = |container| move |share| Row { container, share };
        let all = self.snapshot.containers.iter().filter(fits);
        let mut rows: Vec<Row<'_>> =
            all.flat_map(|container| container.gpus.iter().map(shares(container))).filter(|row| row.share.uuid == uuid).collect();
        let figure = |row: &Row<'_>| match self.sort {
            Sort::Memory => row.memory() as f64,
            Sort::Time => row.share.utilization.unwrap_or(0.0),
            Sort::Throttled => row.share.throttled.unwrap_or(0.0),
            Sort::Name => 0.0,
            Sort::Age => row.container.created as f64,
        };
        rows.sort_by_cached_key(|row| (row.container.name(), row.container.id.clone()));
        rows.sort_by(|a, b| figure(b).total_cmp(&figure(a)));
        rows
    }

    /// Every GPU that is shown: those of the machine, then those that only containers know of.
    pub fn uuids(&self) -> Vec<&str> {
        let mut uuids: Vec<&str> = self.snapshot.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        for share in self.snapshot.containers.iter().flat_map(|container| &container.gpus) {
            if !uuids.contains(&share.uuid.as_str()) {
                uuids.push(&share.uuid);
            }
        }
        uuids
    }

    fn keys(&self) -> Vec<(String, String)> {
        let rows = self.uuids().into_iter().flat_map(|uuid| self.rows(uuid));
        rows.map(|row| (row.container.place.clone(), row.share.uuid.clone())).collect()
    }

    pub fn press(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => self.done = true,
            code if self.typing => self.edit(code),
            KeyCode::Char('q') => self.done = true,
            KeyCode::Esc if self.detail.is_some() => self.detail = None,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Enter => self.detail = self.chosen.as_ref().map(|(place, _)| place.clone()),
            _ => {}
        }
    }

    fn edit(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    /// Moves the cursor; where there is none yet, or its container is gone, to the first.
    fn step(&mut self, by: isize) {
        let keys = self.keys();
        let place = self.chosen.as_ref().and_then(|chosen| keys.iter().position(|key| key == chosen));
        let next = place.map_or(0, |place| place.saturating_add_signed(by).min(keys.len().saturating_sub(1)));
        self.chosen = keys.get(next).cloned();
        if self.detail.is_some() {
            self.detail = self.chosen.as_ref().map(|(place, _)| place.clone());
        }
    }
}
