//! State of the view: the snapshot, its history, the order, the filter and the selected row.

use super::history::History;
use crate::origins::Origins;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEventKind};
use std::cmp::Reverse;
use std::collections::HashSet;
use vgpu_monitor::snapshot::{ContainerState, Share, Snapshot, Unlimited};

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

/// Rows by which the page keys move the cursor.
const PAGE: isize = 10;
/// Unlimited processes that are listed for each GPU at most.
pub(super) const MAX_UNLIMITED: usize = 10;

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

    pub fn key(&self) -> Key {
        Key::Share { place: self.container.dir_name.clone(), uuid: self.share.uuid.clone() }
    }
}

/// What identifies a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Container's share of a GPU.
    Share { place: String, uuid: String },
    /// Process without limits.
    Process { pid: u32, uuid: String },
}

/// What is at a place of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// A row that can be selected.
    Row(Key),
    /// The title of a column by which the containers can be sorted.
    Title(Sort),
}

/// State of the view.
#[derive(Debug)]
pub(super) struct View {
    pub snapshot: Snapshot,
    pub sort: Sort,
    pub is_reversed: bool,
    pub filter: String,
    /// Whether keys edit the filter.
    pub is_typing: bool,
    pub is_paused: bool,
    pub is_help: bool,
    /// Whether processes without limits are listed.
    pub lists_unlimited: bool,
    /// Row that is shown in detail.
    pub detail: Option<Key>,
    /// Row at the cursor. `None` if there are no rows.
    pub selected: Option<Key>,
    pub history: History,
    pub origins: Origins,
    is_done: bool,
}

impl View {
    pub fn new(sort: Sort, filter: String) -> Self {
        Self {
            snapshot: Snapshot::default(),
            sort,
            is_reversed: false,
            filter,
            is_typing: false,
            is_paused: false,
            is_help: false,
            lists_unlimited: true,
            detail: None,
            selected: None,
            history: History::default(),
            origins: Origins::of_host(),
            is_done: false,
        }
    }

    /// Replaces the snapshot.
    pub fn update(&mut self, snapshot: Snapshot) {
        self.history.update(&snapshot);
        self.snapshot = snapshot;
        self.keep_cursor();
        self.look_up_processes();
    }

    /// Closes the details of a container that has ended, and moves the cursor to the first row if its row is gone.
    fn keep_cursor(&mut self) {
        let existing: HashSet<&str> = self.snapshot.containers.iter().map(|container| container.dir_name.as_str()).collect();
        let exists = |key: &Key| match key {
            Key::Share { place, .. } => existing.contains(place.as_str()),
            Key::Process { pid, uuid } => {
                self.snapshot.gpus.iter().any(|gpu| gpu.uuid == *uuid && gpu.unlimited.iter().any(|one| one.pid == *pid))
            }
        };
        self.detail = self.detail.take().filter(exists);
        let keys = self.keys();
        if self.detail.is_none() && !self.selected.as_ref().is_some_and(|key| keys.contains(key)) {
            self.selected = keys.first().cloned();
        }
    }

    /// Looks up the processes that are listed.
    fn look_up_processes(&mut self) {
        let of_container = self.container_in_detail().into_iter().flat_map(|container| &container.gpus).flat_map(|share| &share.processes);
        let mut pids: Vec<u32> = of_container.filter_map(|process| process.pid).collect();
        for gpu in &self.snapshot.gpus {
            pids.extend(self.unlimited(&gpu.uuid).iter().map(|process| process.pid));
        }
        self.origins.forget();
        pids.into_iter().for_each(|pid| self.origins.look_up(pid));
    }

    /// Returns the container that is shown in detail.
    pub fn container_in_detail(&self) -> Option<&ContainerState> {
        let Some(Key::Share { place, .. }) = &self.detail else { return None };
        self.snapshot.containers.iter().find(|container| container.dir_name == *place)
    }

    /// Returns whether the user has quit.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the shares of one GPU that match the filter, sorted.
    pub fn rows(&self, uuid: &str) -> Vec<Row<'_>> {
        let filter = self.filter.to_lowercase();
        // The characters of an ID mean nothing, so only its beginning counts.
        let matches = |container: &&ContainerState| {
            container.id.starts_with(&filter) || (container.is_named() && container.name().to_lowercase().contains(&filter))
        };
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
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// Returns the processes of one GPU that have no limits, those with most memory first, as far as they are listed.
    pub fn unlimited(&self, uuid: &str) -> Vec<&Unlimited> {
        let filter = self.filter.to_lowercase();
        let gpu = self.snapshot.gpus.iter().filter(|gpu| gpu.uuid == uuid && self.lists_unlimited);
        let mut found: Vec<&Unlimited> =
            gpu.flat_map(|gpu| &gpu.unlimited).filter(|process| process.name.to_lowercase().contains(&filter)).collect();
        found.sort_by_key(|process| (Reverse(process.held), process.pid));
        found.truncate(MAX_UNLIMITED);
        found
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

    /// Returns the keys of all rows, from top to bottom.
    fn keys(&self) -> Vec<Key> {
        let of_gpu = |uuid: &str| {
            let processes = self.unlimited(uuid).into_iter().map(|process| Key::Process { pid: process.pid, uuid: uuid.to_owned() });
            self.rows(uuid).iter().map(Row::key).chain(processes).collect::<Vec<_>>()
        };
        self.uuids().into_iter().flat_map(of_gpu).collect()
    }

    /// Handles a key.
    pub fn handle_key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => self.is_done = true,
            code if self.is_typing => self.edit_filter(code),
            KeyCode::Char('q') => self.is_done = true,
            KeyCode::Char('?') => self.is_help = !self.is_help,
            _ if self.is_help => self.is_help = false,
            KeyCode::Esc | KeyCode::Backspace if self.detail.is_some() => self.detail = None,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('u') => self.lists_unlimited = !self.lists_unlimited,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => (self.is_typing, self.detail) = (true, None),
            KeyCode::Down | KeyCode::Char('j') => self.move_cursor(1),
            KeyCode::Up | KeyCode::Char('k') => self.move_cursor(-1),
            KeyCode::PageDown => self.move_cursor(PAGE),
            KeyCode::PageUp => self.move_cursor(-PAGE),
            KeyCode::Home => self.move_cursor(isize::MIN),
            KeyCode::End => self.move_cursor(isize::MAX),
            KeyCode::Enter => self.detail.clone_from(&self.selected),
            _ => {}
        }
        self.keep_cursor();
        self.look_up_processes();
    }

    /// Handles the mouse. `target` is what is below it.
    pub fn handle_mouse(&mut self, kind: MouseEventKind, target: Option<Target>) {
        match (kind, target) {
            (MouseEventKind::ScrollDown, _) => self.move_cursor(1),
            (MouseEventKind::ScrollUp, _) => self.move_cursor(-1),
            (MouseEventKind::Down(MouseButton::Right), _) => self.detail = None,
            (MouseEventKind::Down(MouseButton::Left), Some(Target::Row(key))) => {
                if self.selected.as_ref() == Some(&key) {
                    self.detail = Some(key.clone());
                }
                self.selected = Some(key);
            }
            (MouseEventKind::Down(MouseButton::Left), Some(Target::Title(sort))) => {
                self.is_reversed = self.sort == sort && !self.is_reversed;
                self.sort = sort;
            }
            _ => return,
        }
        self.look_up_processes();
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

    /// Moves the cursor; to the first row if its row is gone.
    fn move_cursor(&mut self, by: isize) {
        let keys = self.keys();
        let index = self.selected.as_ref().and_then(|chosen| keys.iter().position(|key| key == chosen));
        let next = index.map_or(0, |index| index.saturating_add_signed(by).min(keys.len().saturating_sub(1)));
        self.selected = keys.get(next).cloned();
        if self.detail.is_some() {
            self.detail.clone_from(&self.selected);
        }
    }
}
