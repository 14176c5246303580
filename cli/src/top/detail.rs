//! The view of one container with its processes, or of one process without limits.

use super::view::{Key, View};
use super::widgets::{fit, spark};
use crate::human::{bytes, duration};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use vgpu_monitor::account::Moves;
use vgpu_monitor::snapshot::{ContainerState, GpuProcess, Share};

/// Formats what a row stands for; no lines if it does not exist.
pub(super) fn lines(view: &View, key: &Key, width: u16) -> Vec<Line<'static>> {
    match key {
        Key::Share { .. } => view.container_in_detail().map(|container| of_container(view, container, width)).unwrap_or_default(),
        Key::Process { pid, uuid } => of_process(view, *pid, uuid, width),
    }
}

fn of_container(view: &View, container: &ContainerState, width: u16) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let fit = |text: String| fit(&text, usize::from(width)).trim_end().to_owned();
    let mut lines: Vec<Line<'static>> = folded(&container.name(), width).into_iter().map(|part| Line::styled(part, bold)).collect();
    lines.extend(folded(&format!("id {}", container.id), width).into_iter().map(Line::from));
    lines.push(Line::from(fit(about(container, view.snapshot.time))));
    if let Some(reason) = &container.damaged {
        lines.extend(folded(reason, width).into_iter().map(|part| Line::styled(part, Style::new().fg(Color::Red))));
    }
    for share in &container.gpus {
        lines.push(Line::default());
        lines.push(Line::styled(fit(gpu(view, &share.uuid)), bold));
        lines.extend(figures(share, view.snapshot.time).into_iter().map(|text| Line::from(fit(text))));
        lines.push(history(view, container, share, width));
        let titles = row(["PID", "NS PID", "USER", "CHARGED", "NVML", "OVERHEAD", "COMMAND"]);
        lines.push(Line::styled(fit(titles), Style::new().fg(Color::DarkGray)));
        let mut members: Vec<&GpuProcess> = share.processes.iter().collect();
        members.sort_by_key(|member| std::cmp::Reverse(member.held.or(member.charged)));
        for member in members {
            let format = |amount: Option<u64>| amount.map_or_else(|| "-".to_owned(), bytes);
            let pid = member.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let origin = member.pid.map(|pid| view.origins.of(pid)).unwrap_or_default();
            let command = if origin.command.is_empty() { &member.name } else { &origin.command };
            let (inner, charged, held) = (member.inner_pid.to_string(), format(member.charged), format(member.held));
            let text = row([&pid, &inner, &origin.user, &charged, &held, &bytes(member.overhead), command]);
            // A process without an account bypasses the library.
            let style = if member.charged.is_none() { Style::new().fg(Color::Red) } else { Style::new() };
            lines.push(Line::styled(fit(text), style));
        }
    }
    lines
}

/// Formats a process without limits.
fn of_process(view: &View, pid: u32, uuid: &str, width: u16) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let found = view.snapshot.gpus.iter().find(|gpu| gpu.uuid == uuid).and_then(|gpu| gpu.unlimited.iter().find(|one| one.pid == pid));
    let Some(process) = found else { return Vec::new() };
    let origin = view.origins.of(pid);
    let held = process.held.map_or_else(|| "?".to_owned(), bytes);
    let time = process.observed.map_or_else(|| "?".to_owned(), |percent| format!("{percent}%"));
    let mut lines = vec![
        Line::styled(process.name.clone(), bold),
        Line::from(format!("pid {pid}   user {}   belongs to no container with limits", origin.user)),
        Line::default(),
        Line::styled(gpu(view, uuid), bold),
        Line::from(format!("  memory   NVML {held}")),
        Line::from(format!("  time     NVML {time}")),
        Line::default(),
    ];
    lines.extend(folded(&origin.command, width).into_iter().map(Line::from));
    lines
}

/// Formats a GPU's number and UUID.
fn gpu(view: &View, uuid: &str) -> String {
    let index = view.snapshot.gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| format!("GPU {}  ", gpu.index));
    format!("{}{uuid}", index.unwrap_or_default())
}

/// Returns a text in lines of at most `width` cells.
fn folded(text: &str, width: u16) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(usize::from(width).max(1)).map(|part| part.iter().collect()).collect()
}

/// Draws the recent samples as parts of the limits.
fn history(view: &View, container: &ContainerState, share: &Share, width: u16) -> Line<'static> {
    let (place, uuid) = (&container.dir_name, &share.uuid);
    let room = usize::from(width).saturating_sub(26) / 2;
    Line::from(vec![
        Span::raw("  history  memory "),
        spark(view.history.memory(place, uuid), room),
        Span::raw("  time "),
        spark(view.history.time(place, uuid), room),
    ])
}

/// Formats a line of the table of processes.
fn row([pid, inner, user, charged, held, overhead, command]: [&str; 7]) -> String {
    format!("  {pid:>8} {inner:>7} {} {charged:>8} {held:>8} {overhead:>8}  {command}", fit(user, 8))
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
    let mut lines = vec![
        format!(
            "  memory   limit {}   NVML {held}   charged {} (overhead {}, managed {})",
            share.memory_limit.map_or_else(none, bytes),
            bytes(share.charged),
            bytes(share.overhead),
            bytes(share.managed),
        ),
        format!(
            "           spilled to host {}   moved out {}   refused {}{first_refusal}",
            bytes(share.spilled),
            bytes(share.moved_out),
            share.refused
        ),
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
    ];
    if share.moves_out.count != 0 {
        lines.insert(2, format!("           moves out {}   moves in {}", moves(share.moves_out), moves(share.moves_in)));
    }
    lines
}

/// Formats the number of moves, their memory and their time.
fn moves(moves: Moves) -> String {
    format!("{} ({} in {:.1} s)", moves.count, bytes(moves.bytes), moves.took_ns as f64 / 1e9)
}
