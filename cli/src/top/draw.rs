//! Draws the view as lines of text.

use super::detail;
use super::view::{Row, View};
use super::widgets::{bar, fit, spark};
use crate::human::{bytes, duration};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use vgpu_monitor::snapshot::ContainerState;
use vgpu_monitor::text::printable;

/// Widths of the flexible columns, in cells.
struct Columns {
    name: usize,
    memory: usize,
    time: usize,
    spark: usize,
}

/// Total width of the other columns.
const FIXED: usize = 13 + 9 + 5 + 4 + 5 + 8;

impl Columns {
    /// Shares the cells beyond 80 among the columns.
    fn of(width: u16) -> Self {
        let free = usize::from(width).saturating_sub(FIXED).max(36);
        let more = free - 36;
        let (memory, time, spark) = (8 + (more / 5).min(20), 6 + (more / 6).min(18), 8 + (more / 4).min(40));
        Self { name: (free - memory - time - spark).min(60), memory, time, spark }
    }
}

/// Draws the title line.
fn head(view: &View) -> Line<'static> {
    let containers = view.snapshot.containers.len();
    let mut text = format!("vgpu top   {containers} container{}   sort: {}", if containers == 1 { "" } else { "s" }, view.sort.name());
    if view.is_typing || !view.filter.is_empty() {
        text += &format!("   filter: {}{}", view.filter, if view.is_typing { "_" } else { "" });
    }
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

const KEYS: &str = "q quit  ↑↓ select  enter details  s sort  / filter  esc back";

/// Draws the whole screen of a terminal of this size.
pub(super) fn screen(view: &View, width: u16, height: u16) -> Text<'static> {
    let rows = usize::from(height).saturating_sub(2);
    let lines = match &view.detail {
        Some(place) => detail::lines(view, place, width),
        None => body(view, width),
    };
    // Scrolls so that the cursor's line is visible.
    let cursor = lines.iter().position(|line| line.style.add_modifier.contains(Modifier::REVERSED)).unwrap_or(0);
    let first = (cursor + 1).saturating_sub(rows);
    let mut shown: Vec<Line<'static>> = vec![head(view)];
    let more = lines.len().saturating_sub(first + rows);
    shown.extend(lines.into_iter().skip(first).take(rows));
    shown.resize(rows + 1, Line::default());
    let keys = if more > 0 { format!("{KEYS}   ({more} more below)") } else { KEYS.to_owned() };
    shown.push(Line::styled(fit(&keys, usize::from(width)), Style::new().fg(Color::DarkGray)));
    Text::from(shown)
}

/// Draws the GPUs with their containers.
pub(super) fn body(view: &View, width: u16) -> Vec<Line<'static>> {
    let columns = Columns::of(width);
    let mut lines = Vec::new();
    if let Some(error) = &view.snapshot.nvml_error {
        lines.push(Line::styled(fit(&format!("NVML: {error}"), usize::from(width)), Style::new().fg(Color::Red)));
    }
    for (number, uuid) in view.uuids().into_iter().enumerate() {
        if number > 0 {
            lines.push(Line::default());
        }
        lines.push(gpu(view, uuid, &columns));
        let rows = view.rows(uuid);
        let empty = || Line::styled("  no containers", Style::new().fg(Color::DarkGray));
        lines.push(if rows.is_empty() { empty() } else { titles(&columns) });
        lines.extend(rows.iter().map(|row| line(view, row, &columns)));
    }
    if lines.is_empty() {
        lines.push(Line::from("no GPUs and no containers with limits"));
    }
    lines
}

/// Draws a GPU's own line.
fn gpu(view: &View, uuid: &str, columns: &Columns) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let Some(gpu) = view.snapshot.gpus.iter().find(|gpu| gpu.uuid == uuid) else { return Line::styled(uuid.to_owned(), bold) };
    let used = gpu.memory_used.unwrap_or(0);
    let name =
        first_that_fits([format!("GPU {} {}", gpu.index, gpu.name), format!("GPU {} {}", gpu.index, product(&gpu.name))], columns.name);
    let mut spans = vec![Span::styled(name, bold), Span::raw(" ")];
    spans.extend(bar(used as f64 / gpu.memory.max(1) as f64, columns.memory));
    let of = gpu.memory_used.map_or_else(|| "?".to_owned(), bytes);
    spans.push(Span::raw(format!(" {:<12} ", format!("{of}/{}", bytes(gpu.memory)))));
    spans.extend(bar(f64::from(gpu.utilization.unwrap_or(0)) / 100.0, columns.time));
    spans.push(Span::raw(gpu.utilization.map_or_else(|| " busy ?".to_owned(), |percent| format!(" {percent}% busy"))));
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

/// Returns as much of a container's name as fits; its last part is kept longest.
fn name(container: &ContainerState, width: usize) -> String {
    let part = |part: &Option<String>| printable(part.as_deref().unwrap_or_default());
    let (pod, name) = (part(&container.pod), part(&container.container));
    let last = if name.is_empty() { container.name() } else { name.clone() };
    let both = if pod.is_empty() { last.clone() } else { format!("{pod}/{name}") };
    first_that_fits([container.name(), both, last], width)
}

/// Draws the titles of the columns.
fn titles(columns: &Columns) -> Line<'static> {
    let Columns { name, memory, time, spark } = columns;
    let text = format!(
        "{:<name$} {:<memory$} {:<12} {:<time$} {:<8} {:<spark$} {:>5} {:>4} {:>7}",
        "  CONTAINER", "MEMORY", "", "TIME", "", "HISTORY", "WAIT", "PROC", "REFUSED"
    );
    Line::styled(text, Style::new().fg(Color::DarkGray))
}

/// Draws a container's share of a GPU.
fn line(view: &View, row: &Row<'_>, columns: &Columns) -> Line<'static> {
    let (share, held) = (row.share, row.memory());
    let limit =
        share.memory_limit.unwrap_or_else(|| view.snapshot.gpus.iter().find(|gpu| gpu.uuid == share.uuid).map_or(0, |gpu| gpu.memory));
    let over = share.memory_limit.is_some_and(|limit| held > limit);
    // More GPU time than the limit by a quarter of the GPU, which the container's own account does not show.
    let over_time = share.cores.zip(share.observed).is_some_and(|(cores, seen)| seen > f64::from(cores.max(share.lent)) + 25.0);
    let mark = if over || over_time || row.container.damaged.is_some() { "! " } else { "  " };
    let name_style = if mark == "! " { Style::new().fg(Color::Red) } else { Style::new() };
    let mut spans = vec![Span::styled(format!("{mark}{}", name(row.container, columns.name - 2)), name_style), Span::raw(" ")];
    spans.extend(bar(held as f64 / limit.max(1) as f64, columns.memory));
    spans.push(Span::raw(format!(
        " {:<12} ",
        fit(&format!("{}/{}", bytes(held), share.memory_limit.map_or_else(|| "-".to_owned(), bytes)), 12)
    )));
    spans.extend(bar(share.utilization.unwrap_or(0.0) / row.cores(), columns.time));
    let used = share.utilization.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.0}"));
    let of = share.cores.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"));
    spans.push(Span::raw(format!(" {:<8} ", format!("{used}/{of}"))));
    spans.push(spark(view.history(row), columns.spark));
    let throttled = share.throttled.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0}%"));
    let refused = share.first_refusal.map_or_else(|| "-".to_owned(), |at| format!("{} ago", duration(view.snapshot.time - at)));
    spans.push(Span::raw(format!(" {throttled:>5} {:>4} {refused:>7}", share.processes.len())));
    let is_selected = view.selected.as_ref().is_some_and(|(place, uuid)| (place, uuid) == (&row.container.dir_name, &share.uuid));
    Line::from(spans).style(if is_selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() })
}
