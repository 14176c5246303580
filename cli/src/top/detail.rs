//! The view of one container with its processes.

use super::view::View;
use super::widgets::fit;
use crate::human::{bytes, duration};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use vgpu_monitor::snapshot::{ContainerState, GpuProcess, Share};

/// Formats the container whose folder is `place`; no lines if it does not exist.
pub(super) fn lines(view: &View, place: &str, width: u16) -> Vec<Line<'static>> {
    let Some(container) = view.snapshot.containers.iter().find(|container| container.dir_name == place) else { return Vec::new() };
    let fit = |text: String| fit(&text, usize::from(width)).trim_end().to_owned();
    let mut lines = vec![
        Line::styled(fit(container.name()), Style::new().add_modifier(Modifier::BOLD)),
        Line::from(fit(format!("id {}   {}", container.id, about(container, view.snapshot.time)))),
    ];
    if let Some(reason) = &container.damaged {
        lines.push(Line::styled(fit(reason.clone()), Style::new().fg(Color::Red)));
    }
    for share in &container.gpus {
        let index = view.snapshot.gpus.iter().find(|gpu| gpu.uuid == share.uuid).map(|gpu| format!("GPU {}  ", gpu.index));
        lines.push(Line::default());
        lines.push(Line::styled(fit(format!("{}{}", index.unwrap_or_default(), share.uuid)), Style::new().add_modifier(Modifier::BOLD)));
        lines.extend(figures(share, view.snapshot.time).into_iter().map(|text| Line::from(fit(text))));
        lines.push(Line::styled(fit(row(["PID", "NS PID", "CHARGED", "NVML", "OVERHEAD", "PROGRAM"])), Style::new().fg(Color::DarkGray)));
        let mut members: Vec<&GpuProcess> = share.processes.iter().collect();
        members.sort_by_key(|member| std::cmp::Reverse(member.held.or(member.charged)));
        for member in members {
            let format = |amount: Option<u64>| amount.map_or_else(|| "-".to_owned(), bytes);
            let pid = member.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let (inner, charged, held) = (member.inner_pid.to_string(), format(member.charged), format(member.held));
            let text = row([&pid, &inner, &charged, &held, &bytes(member.overhead), &member.name]);
            // A process without an account bypasses the library.
            let style = if member.charged.is_none() { Style::new().fg(Color::Red) } else { Style::new() };
            lines.push(Line::styled(fit(text), style));
        }
    }
    lines
}

/// Formats a line of the table of processes.
fn row([pid, inner, charged, held, overhead, name]: [&str; 6]) -> String {
    format!("  {pid:>8} {inner:>8} {charged:>9} {held:>9} {overhead:>9}  {name}")
}

/// Formats the container's age, priority and number of changes of its limits.
fn about(container: &ContainerState, now: f64) -> String {
    let changes = match container.changes {
        0 => String::new(),
        1 => "   limits changed once".to_owned(),
        count => format!("   limits changed {count} times"),
    };
    format!("age {}   priority {}{changes}", duration(now - container.created as f64), container.priority)
}

/// Formats the memory and GPU time of a share.
fn figures(share: &Share, now: f64) -> Vec<String> {
    let none = || "none".to_owned();
    let held = share.held.map_or_else(|| "?".to_owned(), bytes);
    let soft = share.cores_soft.map_or_else(String::new, |percent| format!(", up to {percent}% while idle"));
    let percent = |figure: Option<f64>| figure.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.1}%"));
    let first_refusal = share.first_refusal.map_or_else(String::new, |at| format!(", first {} ago", duration(now - at)));
    vec![
        format!(
            "  memory   limit {}   NVML {held}   charged {} (overhead {}, managed {})",
            share.memory_limit.map_or_else(none, bytes),
            bytes(share.charged),
            bytes(share.overhead),
            bytes(share.managed),
        ),
        format!("           spilled to host {}   refused {}{first_refusal}", bytes(share.spilled), share.refused),
        format!(
            "  time     limit {}{soft}   now {}   NVML {}   charged {:.1} s",
            share.cores.map_or_else(none, |percent| format!("{percent}%")),
            percent(share.utilization),
            percent(share.observed),
            share.used_ns as f64 / 1e9,
        ),
        format!(
            "           throttled {} now, {:.1} s in total   turn changes {}",
            percent(share.throttled),
            share.throttled_ns as f64 / 1e9,
            share.turn_changes
        ),
    ]
}
