//! State of the view: the snapshot, its history, the sort order, the filter and the selected container.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::{HashMap, VecDeque};
use vgpu_monitor::snapshot::{ContainerState, Share, Snapshot};

/// Order of the containers on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Most memory first
    Memory,
    /// Most GPU time first
    Time,
    /// Most throttled first
    Throttled,
    /// By name
    Name,
    /// Youngest first
    Age,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Memory, Self::Time, Self::Throttled, Self::Name, Self::Age];

    /// Returns the name that the title line shows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Time => "time",
            Self::Throttled => "throttled",
            Self::Name => "name",
            Self::Age => "age",
        }
    }

    /// Returns the next order, cyclically.
    fn next(self) -> Self {
        let index = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL.get((index + 1) % Self::ALL.len()).copied().unwrap_or(self)
    }
}

/// Samples kept per share.
const HISTORY_LEN: usize = 120;

/// Container's share of a GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub container: &'a ContainerState,
    pub share: &'a Share,
}

impl Row<'_> {
    /// Returns the memory held, in bytes: the larger of NVML's figure and the account's.
    pub fn memory(&self) -> u64 {
        self.share.held.unwrap_or(0).max(self.share.charged)
    }

    /// Returns the limit on GPU time, in percent; 100 without a limit.
    pub fn cores(&self) -> f64 {
        self.share.cores.map_or(100.0, f64::from)
    }
}

/// State of the view.
#[derive(Debug)]
pub(super) struct View {
    pub snapshot: Snapshot,
    pub sort: Sort,
    pub filter: String,
    /// Whether keys edit the filter.
    pub is_typing: bool,
    /// Place of the container that is shown in detail.
    pub detail: Option<String>,
    /// Place of the container at the cursor, and UUID of the GPU.
    pub selected: Option<(String, String)>,
    /// Recent parts of the limit on GPU time that were used, by place and UUID.
    history: HashMap<(String, String), VecDeque<f64>>,
    is_done: bool,
}

impl View {
    pub fn new(sort: Sort, filter: String) -> Self {
        Self {
            snapshot: Snapshot::default(),
            sort,
            filter,
            is_typing: false,
            detail: None,
            selected: None,
            history: HashMap::new(),
            is_done: false,
        }
    }

    /// Replaces the snapshot, and drops the history of shares that are gone.
    pub fn update(&mut self, snapshot: Snapshot) {
        let mut history = HashMap::new();
        for container in &snapshot.containers {
            for share in &container.gpus {
                let key = (container.dir_name.clone(), share.uuid.clone());
                let mut samples = self.history.remove(&key).unwrap_or_default();
                samples.extend(share.utilization.map(|percent| percent / share.cores.map_or(100.0, f64::from)));
                samples.drain(..samples.len().saturating_sub(HISTORY_LEN));
                history.insert(key, samples);
            }
        }
        self.history = history;
        self.snapshot = snapshot;
        let exists = |place: &String| self.snapshot.containers.iter().any(|container| container.dir_name == *place);
        self.detail = self.detail.take().filter(exists);
    }

    /// Returns whether the user has quit.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the recent GPU time of a share as parts of its limit, oldest first.
    pub fn history(&self, row: &Row<'_>) -> impl DoubleEndedIterator<Item = f64> {
        self.history.get(&(row.container.dir_name.clone(), row.share.uuid.clone())).into_iter().flatten().copied()
    }

    /// Returns the shares of one GPU that match the filter, sorted.
    pub fn rows(&self, uuid: &str) -> Vec<Row<'_>> {
        let filter = self.filter.to_lowercase();
        let matches = |container: &&ContainerState| container.name().to_lowercase().contains(&filter) || container.id.contains(&filter);
        let shares = |container| move |share| Row { container, share };
        let all = self.snapshot.containers.iter().filter(matches);
        let mut rows: Vec<Row<'_>> =
            all.flat_map(|container| container.gpus.iter().map(shares(container))).filter(|row| row.share.uuid == uuid).collect();
        let sort_key = |row: &Row<'_>| match self.sort {
            Sort::Memory => row.memory() as f64,
            Sort::Time => row.share.utilization.unwrap_or(0.0),
            Sort::Throttled => row.share.throttled.unwrap_or(0.0),
            Sort::Name => 0.0,
            Sort::Age => row.container.created as f64,
        };
        rows.sort_by_cached_key(|row| (row.container.name(), row.container.id.clone()));
        rows.sort_by(|a, b| sort_key(b).total_cmp(&sort_key(a)));
        rows
    }

    /// Returns the UUIDs of all GPUs: the machine's, then those found in containers only.
    pub fn uuids(&self) -> Vec<&str> {
        let mut uuids: Vec<&str> = self.snapshot.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        for share in self.snapshot.containers.iter().flat_map(|container| &container.gpus) {
            if !uuids.contains(&share.uuid.as_str()) {
                uuids.push(&share.uuid);
            }
        }
        uuids
    }

    /// Returns the place and UUID of each visible row, from top to bottom.
    fn keys(&self) -> Vec<(String, String)> {
        let rows = self.uuids().into_iter().flat_map(|uuid| self.rows(uuid));
        rows.map(|row| (row.container.dir_name.clone(), row.share.uuid.clone())).collect()
    }

    /// Handles a key.
    pub fn handle_key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => self.is_done = true,
            code if self.is_typing => self.edit_filter(code),
            KeyCode::Char('q') => self.is_done = true,
            KeyCode::Esc if self.detail.is_some() => self.detail = None,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Down | KeyCode::Char('j') => self.move_cursor(1),
            KeyCode::Up | KeyCode::Char('k') => self.move_cursor(-1),
            KeyCode::Enter => self.detail = self.selected.as_ref().map(|(place, _)| place.clone()),
            _ => {}
        }
    }

    /// Handles a key while the filter is edited.
    fn edit_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    /// Moves the cursor; to the first row if there is no cursor or its container is gone.
    fn move_cursor(&mut self, by: isize) {
        let keys = self.keys();
        let index = self.selected.as_ref().and_then(|chosen| keys.iter().position(|key| key == chosen));
        let next = index.map_or(0, |index| index.saturating_add_signed(by).min(keys.len().saturating_sub(1)));
        self.selected = keys.get(next).cloned();
        if self.detail.is_some() {
            self.detail = self.selected.as_ref().map(|(place, _)| place.clone());
        }
    }
}
