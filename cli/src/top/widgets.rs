//! Bars and sparklines in text.

use ratatui::style::{Color, Style};
use ratatui::text::Span;

const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A bar of `width` cells, filled to `part` of 1.
pub(super) fn bar(part: f64, width: usize) -> [Span<'static>; 2] {
    let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (part * width as f64 * 8.0).round() as usize;
    let (whole, rest) = (eighths / 8, EIGHTHS.get(eighths % 8).copied().unwrap_or_default());
    let filled = format!("{}{rest}", "█".repeat(whole));
    let left = width.saturating_sub(filled.chars().count());
    [Span::styled(filled, Style::new().fg(color(part))), Span::styled("·".repeat(left), Style::new().fg(Color::DarkGray))]
}

fn color(part: f64) -> Color {
    match part {
        0.95.. => Color::Red,
        0.75.. => Color::Yellow,
        _ => Color::Green,
    }
}

/// The last `width` figures, each of 1, the newest at the right.
pub(super) fn spark(history: impl DoubleEndedIterator<Item = f64>, width: usize) -> Span<'static> {
    let height = |part: f64| {
        let step = (part.clamp(0.0, 1.0) * (HEIGHTS.len() - 1) as f64).round() as usize;
        HEIGHTS.get(step).copied().unwrap_or(' ')
    };
    let mut text: Vec<char> = history.rev().take(width).map(height).collect();
    text.resize(width, ' ');
    Span::styled(text.into_iter().rev().collect::<String>(), Style::new().fg(Color::Cyan))
}

/// Text cut or filled to `width` cells; what is cut ends with an ellipsis.
pub(super) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return format!("{text:<width$}");
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_sparks_are_as_wide_as_said() {
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
