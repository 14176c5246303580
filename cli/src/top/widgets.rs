//! Bars and sparklines in text.

use ratatui::style::{Color, Style};
use ratatui::text::Span;

const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws a bar of `width` cells that is filled to `part` (0 to 1).
pub(super) fn bar(part: f64, width: usize) -> [Span<'static>; 2] {
    let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (part * width as f64 * 8.0).round() as usize;
    let (whole, fraction) = (eighths / 8, EIGHTHS.get(eighths % 8).copied().unwrap_or_default());
    let filled = format!("{}{fraction}", "█".repeat(whole));
    let empty = width.saturating_sub(filled.chars().count());
    [Span::styled(filled, Style::new().fg(color(part))), Span::styled("·".repeat(empty), Style::new().fg(Color::DarkGray))]
}

/// Returns the color of a bar: red from 95%, yellow from 75%.
fn color(part: f64) -> Color {
    match part {
        0.95.. => Color::Red,
        0.75.. => Color::Yellow,
        _ => Color::Green,
    }
}

/// Draws the last `width` values (0 to 1), the newest at the right.
pub(super) fn spark(history: impl DoubleEndedIterator<Item = f64>, width: usize) -> Span<'static> {
    let height = |part: f64| {
        let step = (part.clamp(0.0, 1.0) * (HEIGHTS.len() - 1) as f64).round() as usize;
        HEIGHTS.get(step).copied().unwrap_or(' ')
    };
    let mut text: Vec<char> = history.rev().take(width).map(height).collect();
    text.resize(width, ' ');
    Span::styled(text.into_iter().rev().collect::<String>(), Style::new().fg(Color::Cyan))
}

/// Pads or cuts text to `width` cells. Cut text ends with an ellipsis.
pub(super) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return format!("{text:<width$}");
    }
    let prefix: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{prefix}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_sparklines_have_the_given_width() {
        for (part, filled) in [(0.0, ""), (0.5, "██"), (0.53, "██▏"), (1.0, "████"), (7.0, "████"), (f64::NAN, "")]
        {
            let [full, empty] = bar(part, 4);
            assert_eq!(full.content, filled, "{part}");
            assert_eq!(full.content.chars().count() + empty.content.chars().count(), 4, "{part}");
        }
        assert_eq!(spark([0.0, 0.5, 1.0].into_iter(), 5).content, "  ▁▅█");
        assert_eq!(spark([0.0, 0.5, 1.0].into_iter(), 2).content, "▅█");
        assert_eq!((fit("abc", 5), fit("abcdef", 4)), ("abc  ".to_owned(), "abc…".to_owned()));
    }
}
