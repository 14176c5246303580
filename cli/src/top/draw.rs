//! Draws the view as lines of text.

use super::view::{Key, Row, Sort, Target, View};
use super::widgets::{bar, fit, spark};
use super::{detail, help};
use crate::human::{bytes, duration};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use vgpu_monitor::snapshot::{ContainerState, Unlimited};
use vgpu_monitor::text::{SHORT_ID, printable, short_id};

/// Line, and what can be selected or sorted by there.
#[derive(Debug, Clone)]
pub(super) struct Drawn {
    pub line: Line<'static>,
    row: Option<Key>,
    is_titles: bool,
}

impl From<Line<'static>> for Drawn {
    fn from(line: Line<'static>) -> Self {
        Self { line, row: None, is_titles: false }
    }
}

/// Widths of the flexible columns, in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    name: usize,
    memory: usize,
    time: usize,
    spark: usize,
}

/// Total width of the other columns.
const FIXED: usize = 13 + 9 + 5 + 4 + 5 + 8;
/// Least width of both bars and the history together.
const MIN_BARS: usize = 16;
/// Least characters of a pod's name that are shown: those that Kubernetes adds to tell pods of one owner apart.
const POD_END: usize = 5;
/// Lines of the screen besides the list: the title, the selected row, the keys.
const FRAME: usize = 3;

impl Columns {
    /// Shares the cells among the columns: first the names as completely as they fit, then bars and history.
    fn of(view: &View, width: u16) -> Self {
        let free = usize::from(width).saturating_sub(FIXED).max(36);
        let length = |container, form: usize| names(container)[form].chars().count() + 2;
        let longest = |form| view.snapshot.containers.iter().map(|container| length(container, form)).max();
        let fitting = (0..2).filter_map(longest).find(|width| *width <= free - MIN_BARS);
        let name = fitting.unwrap_or(free - MIN_BARS).max(14);
        let rest = free - name;
        let (memory, time, spark) = ((rest * 8 / 22).min(28), (rest * 6 / 22).min(24), (rest - rest * 8 / 22 - rest * 6 / 22).min(48));
        Self { name: free - memory - time - spark, memory, time, spark }
    }

    /// Returns the order that the title at a column of the screen stands for.
    fn sort_at(self, x: usize) -> Option<Sort> {
        let [memory, time] = [self.name + 1, self.name + self.memory + 15];
        let [history, wait] = [time + self.time + 10, time + self.time + self.spark + 10];
        match x {
            _ if x < memory => Some(Sort::Name),
            _ if x < time => Some(Sort::Memory),
            _ if x < history => Some(Sort::Time),
            _ if (wait..wait + 6).contains(&x) => Some(Sort::Throttled),
            _ => None,
        }
    }
}

/// Draws the title line.
fn head(view: &View) -> Line<'static> {
    let containers = view.snapshot.containers.len();
    let order = if view.is_reversed { " reversed" } else { "" };
    let mut text =
        format!("vgpu top   {containers} container{}   sort: {}{order}", if containers == 1 { "" } else { "s" }, view.sort.name());
    if view.is_typing || !view.filter.is_empty() {
        text += &format!("   filter: {}{}", view.filter, if view.is_typing { "_" } else { "" });
    }
    if view.is_paused {
        text += "   paused";
    }
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

const KEYS: &str = "q quit  ? help  ↑↓ select  enter details  s sort  / filter  esc back";

/// Returns the lines of the view, and the number of the first one that is shown, so that the cursor's line is visible.
fn scrolled(view: &View, width: u16, rows: usize) -> (Vec<Drawn>, usize) {
    let plain = |lines: Vec<Line<'static>>| lines.into_iter().map(Drawn::from).collect();
    let lines: Vec<Drawn> = match &view.detail {
        _ if view.is_help => plain(help::lines()),
        Some(key) => plain(detail::lines(view, key, width)),
        None => body(view, width),
    };
    let cursor = lines.iter().position(|drawn| drawn.row.is_some() && drawn.row == view.selected).unwrap_or(0);
    (lines, (cursor + 1).saturating_sub(rows))
}

/// Draws the whole screen of a terminal of this size.
pub(super) fn screen(view: &View, width: u16, height: u16) -> Text<'static> {
    let rows = usize::from(height).saturating_sub(FRAME);
    let (lines, first) = scrolled(view, width, rows);
    let more = lines.len().saturating_sub(first + rows);
    let cursor = |drawn: Drawn| match drawn.row.is_some() && drawn.row == view.selected {
        true => drawn.line.style(Style::new().add_modifier(Modifier::REVERSED)),
        false => drawn.line,
    };
    let mut shown: Vec<Line<'static>> = vec![head(view)];
    shown.extend(lines.into_iter().skip(first).take(rows).map(cursor));
    shown.resize(rows + 1, Line::default());
    shown.push(Line::from(fit(&selected(view), usize::from(width)).trim_end().to_owned()));
    let keys = if more > 0 { format!("{KEYS}  ({more} more)") } else { KEYS.to_owned() };
    shown.push(Line::styled(fit(&keys, usize::from(width)), Style::new().fg(Color::DarkGray)));
    Text::from(shown)
}

/// Returns what is at a place of the screen.
pub(super) fn target_at(view: &View, (width, height): (u16, u16), (x, y): (u16, u16)) -> Option<Target> {
    let rows = usize::from(height).saturating_sub(FRAME);
    let at = usize::from(y).checked_sub(1).filter(|row| *row < rows)?;
    let (lines, first) = scrolled(view, width, rows);
    let drawn = lines.into_iter().nth(first + at)?;
    let title = drawn.is_titles.then(|| Columns::of(view, width).sort_at(usize::from(x))).flatten();
    drawn.row.map(Target::Row).or(title.map(Target::Title))
}

/// Returns the whole name of the selected row, which the list may have to cut.
fn selected(view: &View) -> String {
    match &view.selected {
        _ if view.is_help || view.detail.is_some() => String::new(),
        Some(Key::Share { place, .. }) => {
            let found = view.snapshot.containers.iter().find(|container| container.dir_name == *place);
            found.map_or_else(String::new, |container| {
                let (name, id) = (container.name(), short_id(&container.id));
                if container.is_named() { format!("{name}  {}", printable(id)) } else { name }
            })
        }
        Some(Key::Process { pid, .. }) => format!("{pid}  {}", view.origins.of(*pid).command),
        None => String::new(),
    }
}

/// Draws the GPUs with their containers and the processes without limits.
pub(super) fn body(view: &View, width: u16) -> Vec<Drawn> {
    let columns = Columns::of(view, width);
    let quiet = Style::new().fg(Color::DarkGray);
    let mut lines: Vec<Drawn> = Vec::new();
    if let Some(error) = &view.snapshot.nvml_error {
        lines.push(Line::styled(fit(&format!("NVML: {error}"), usize::from(width)), Style::new().fg(Color::Red)).into());
    }
    for (number, uuid) in view.uuids().into_iter().enumerate() {
        if number > 0 {
            lines.push(Line::default().into());
        }
        lines.push(gpu(view, uuid, columns, width).into());
        let (rows, unlimited) = (view.rows(uuid), view.unlimited(uuid));
        match rows.is_empty() {
            true => lines.push(Line::styled("  no containers", quiet).into()),
            false => lines.push(Drawn { is_titles: true, ..titles(columns).into() }),
        }
        lines.extend(rows.iter().map(|row| Drawn { row: Some(row.key()), ..line(view, row, columns).into() }));
        if !unlimited.is_empty() {
            let text = process_row(["PID", "USER", "MEMORY", "TIME", "WITHOUT LIMITS"]);
            lines.push(Line::styled(text, quiet).into());
        }
        lines.extend(unlimited.into_iter().map(|process| {
            let key = Key::Process { pid: process.pid, uuid: uuid.to_owned() };
            Drawn { row: Some(key), ..unlimited_line(view, process, width).into() }
        }));
        let hidden = view.snapshot.gpus.iter().find(|gpu| gpu.uuid == uuid).map_or(0, |gpu| gpu.unlimited.len());
        let hidden = hidden.saturating_sub(super::view::MAX_UNLIMITED);
        if hidden > 0 && view.lists_unlimited && view.filter.is_empty() {
            lines.push(Line::styled(format!("  {hidden} more"), quiet).into());
        }
    }
    if lines.is_empty() {
        lines.push(Line::from("no GPUs and no containers with limits").into());
    }
    lines
}

/// Draws a GPU's own line.
fn gpu(view: &View, uuid: &str, columns: Columns, width: u16) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let Some(gpu) = view.snapshot.gpus.iter().find(|gpu| gpu.uuid == uuid) else { return Line::styled(uuid.to_owned(), bold) };
    let used = gpu.memory_used.unwrap_or(0);
    let forms = [format!("GPU {} {}", gpu.index, gpu.name), format!("GPU {} {}", gpu.index, product(&gpu.name))];
    let shortest = forms.iter().map(|form| form.chars().count()).min().unwrap_or(0);
    // The line has room that those of containers lack. A longer name takes the place of the history, and then of the bars.
    let rests = [(columns.memory, columns.time, columns.spark), (columns.memory, columns.time, 0), (0, 0, 0)];
    let room = |(memory, time, spark): (usize, usize, usize)| usize::from(width).saturating_sub(memory + time + spark + 26);
    let fits = |rest: &(usize, usize, usize)| shortest <= columns.name || shortest <= room(*rest);
    let (memory, time, history) = rests.into_iter().find(fits).unwrap_or_default();
    let room = if shortest <= columns.name { columns.name } else { room((memory, time, history)) };
    let name = first_that_fits(forms, room);
    let mut spans = vec![Span::styled(name, bold), Span::raw(" ")];
    spans.extend(bar(used as f64 / gpu.memory.max(1) as f64, memory));
    let of = gpu.memory_used.map_or_else(|| "?".to_owned(), bytes);
    spans.push(Span::raw(format!(" {:<12} ", format!("{of}/{}", bytes(gpu.memory)))));
    spans.extend(bar(f64::from(gpu.utilization.unwrap_or(0)) / 100.0, time));
    let busy = gpu.utilization.map_or_else(|| "busy ?".to_owned(), |percent| format!("{percent}% busy"));
    spans.push(Span::raw(format!(" {busy:<9}")));
    spans.push(spark(view.history.time("", uuid), history));
    Line::from(spans)
}

/// Removes the vendor from a product's name.
fn product(name: &str) -> &str {
    name.strip_prefix("NVIDIA ").unwrap_or(name)
}

/// Returns the first text that fits, or else the last one, cut.
fn first_that_fits<const N: usize>(texts: [String; N], width: usize) -> String {
    let fitting = texts.iter().find(|text| text.chars().count() <= width);
    fit(fitting.or(texts.last()).map_or("", String::as_str), width)
}

/// Returns the name of a container's pod and its own, empty if it has none.
fn parts(container: &ContainerState) -> [String; 2] {
    [&container.pod, &container.container].map(|part| printable(part.as_deref().unwrap_or_default()))
}

/// Returns the forms of a container's name, the longest first: the whole one, and without the namespace. Of an ID, the last form is its
/// beginning, as engines print it.
fn names(container: &ContainerState) -> [String; 2] {
    let whole = container.name();
    let short = match parts(container) {
        [pod, name] if pod.is_empty() && name.is_empty() && container.is_named() => whole.clone(),
        [pod, name] if pod.is_empty() && name.is_empty() => whole.chars().take(SHORT_ID).collect(),
        [pod, name] if pod.is_empty() || name.is_empty() => pod + &name,
        [pod, name] => format!("{pod}/{name}"),
    };
    [whole, short]
}

/// Returns a container's name in `width` cells: the longest form that fits, else the end of the pod's name and the container's. Containers
/// of several pods often have one name, and pods of one owner differ at their ends.
fn name_in(container: &ContainerState, width: usize) -> String {
    let forms = names(container);
    let [pod, name] = parts(container);
    if pod.is_empty() || forms.iter().any(|form| form.chars().count() <= width) {
        return first_that_fits(forms, width);
    }
    let name = if name.is_empty() { name } else { format!("/{name}") };
    let room = width.saturating_sub(name.chars().count() + 1).max(POD_END);
    let hidden = pod.chars().count().saturating_sub(room);
    let mark = if hidden > 0 { "…" } else { "" };
    fit(&format!("{mark}{}{name}", pod.chars().skip(hidden).collect::<String>()), width)
}

/// Draws the titles of the columns.
fn titles(columns: Columns) -> Line<'static> {
    let Columns { name, memory, time, spark } = columns;
    let (memory, time) = (memory + 14, time + 10);
    let text = format!(
        "{:<name$} {:<memory$}{:<time$}{:<spark$} {:>5} {:>4} {:>7}",
        "  CONTAINER", "MEMORY", "TIME", "HISTORY", "WAIT", "PROC", "REFUSED"
    );
    Line::styled(text, Style::new().fg(Color::DarkGray))
}

/// Draws a container's share of a GPU.
fn line(view: &View, row: &Row<'_>, columns: Columns) -> Line<'static> {
    let (share, held) = (row.share, row.memory());
    let limit =
        share.memory_limit.unwrap_or_else(|| view.snapshot.gpus.iter().find(|gpu| gpu.uuid == share.uuid).map_or(0, |gpu| gpu.memory));
    let over = share.memory_limit.is_some_and(|limit| held > limit);
    // More GPU time than the limit by a quarter of the GPU, which the container's own account does not show.
    let over_time = share.cores.zip(share.observed).is_some_and(|(cores, seen)| seen > f64::from(cores.max(share.lent)) + 25.0);
    let mark = if over || over_time || row.container.damaged.is_some() { "! " } else { "  " };
    let name_style = if mark == "! " { Style::new().fg(Color::Red) } else { Style::new() };
    let name = name_in(row.container, columns.name - 2);
    let mut spans = vec![Span::styled(format!("{mark}{name}"), name_style), Span::raw(" ")];
    spans.extend(bar(held as f64 / limit.max(1) as f64, columns.memory));
    spans.push(Span::raw(format!(
        " {:<12} ",
        fit(&format!("{}/{}", bytes(held), share.memory_limit.map_or_else(|| "-".to_owned(), bytes)), 12)
    )));
    spans.extend(bar(share.utilization.unwrap_or(0.0) / row.cores(), columns.time));
    let used = share.utilization.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.0}"));
    let of = share.cores.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"));
    spans.push(Span::raw(format!(" {:<8} ", format!("{used}/{of}"))));
    spans.push(spark(view.history.time(&row.container.dir_name, &share.uuid), columns.spark));
    let throttled = share.throttled.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0}%"));
    let refused = share.first_refusal.map_or_else(|| "-".to_owned(), |at| format!("{} ago", duration(view.snapshot.time - at)));
    spans.push(Span::raw(format!(" {throttled:>5} {:>4} {refused:>7}", share.processes.len())));
    Line::from(spans)
}

/// Formats a line of the table of processes without limits.
fn process_row([pid, user, memory, time, command]: [&str; 5]) -> String {
    format!("  {pid:>8} {} {memory:>8} {time:>5}  {command}", fit(user, 10))
}

/// Draws a process without limits.
fn unlimited_line(view: &View, process: &Unlimited, width: u16) -> Line<'static> {
    let origin = view.origins.of(process.pid);
    let held = process.held.map_or_else(|| "?".to_owned(), bytes);
    let time = process.observed.map_or_else(|| "?".to_owned(), |percent| format!("{percent}%"));
    let command = if origin.command.is_empty() { process.name.clone() } else { origin.command };
    let text = process_row([&process.pid.to_string(), &origin.user, &held, &time, &command]);
    Line::styled(fit(&text, usize::from(width)).trim_end().to_owned(), Style::new().fg(Color::Yellow))
}
