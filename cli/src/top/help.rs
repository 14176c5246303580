//! Help on the keys and the columns.

use ratatui::style::{Modifier, Style};
use ratatui::text::Line;

/// Keys and what they do.
const KEYS: [(&str, &str); 11] = [
    ("↑ ↓  k j", "select a row; also the mouse wheel or a click"),
    ("PgUp PgDn", "ten rows; Home and End: the first and the last one"),
    ("Enter", "details with all processes; also a click on the selected row"),
    ("Esc", "back; then clear the filter"),
    ("s", "next order; also a click on a title"),
    ("r", "reverse the order"),
    ("/", "filter by name, or by the beginning of an ID; Enter keeps it"),
    ("u", "show or hide processes without limits"),
    ("p", "pause, and go on"),
    ("?", "this help"),
    ("q", "quit; also Ctrl-C"),
];

/// Columns and what they mean.
const COLUMNS: [(&str, &str); 7] = [
    ("MEMORY", "device memory held and its limit"),
    ("TIME", "percent of the GPU's time and its limit"),
    ("HISTORY", "time of the last samples, as a part of the limit"),
    ("WAIT", "percent of the time for which launches were held back"),
    ("PROC", "number of processes"),
    ("REFUSED", "time since the first refused allocation"),
    ("!", "beyond the limit, or a damaged account"),
];

/// Formats the help.
pub(super) fn lines() -> Vec<Line<'static>> {
    let title = |text: &'static str| Line::styled(text, Style::new().add_modifier(Modifier::BOLD));
    let row = |(name, meaning): &(&str, &str)| Line::from(format!("  {name:<10} {meaning}"));
    let mut lines = vec![title("Keys")];
    lines.extend(KEYS.iter().map(row));
    lines.push(title("Columns"));
    lines.extend(COLUMNS.iter().map(row));
    lines
}
