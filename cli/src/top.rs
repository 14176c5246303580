//! `vgpu top`: a live view of the GPUs and the containers on them.

mod detail;
mod draw;
mod help;
mod history;
mod view;
mod widgets;

use crate::config_args::ConfigArgs;
use crate::outcome::Outcome;
use crate::show::sample;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, DisableMouseCapture, EnableMouseCapture, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vgpu_monitor::observer::Observer;
use view::{Sort, View};

/// Watch GPUs and the containers on them
///
/// Shows for each container: memory held and its limit, GPU time used and its limit, recent GPU time, the percentage of
/// time for which launches were throttled, the number of processes, and the time since the first refused allocation; and
/// the processes on each GPU that belong to no container with limits. The key ? explains keys and columns.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print once and exit
    #[arg(long)]
    once: bool,
    /// Print JSON, one line per sample
    #[arg(long)]
    json: bool,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Order of the containers
    #[arg(long, value_enum, default_value_t = Sort::Memory)]
    sort: Sort,
    /// Show only containers whose name contains this text, or whose id begins with it
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    #[command(flatten)]
    config: ConfigArgs,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected a number of seconds from 0.1 to 3600".to_owned())
}

/// Width in cells where that of the terminal is unknown, and least width of printed lines.
const DEFAULT_WIDTH: u16 = 80;

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let mut observer = Observer::new(&self.config.listed_state_dir()?);
        let mut view = View::new(self.sort, self.filter.clone());
        let interval = Duration::from_secs_f64(self.interval);
        if self.json {
            self.print_json(&mut observer, interval)?;
        } else if self.once || !io::stdout().is_terminal() {
            view.update(sample(&mut observer, |_| true));
            let width = ratatui::crossterm::terminal::size().map_or(DEFAULT_WIDTH, |(width, _)| width.max(DEFAULT_WIDTH));
            let mut out = io::stdout().lock();
            for drawn in draw::body(&view, width) {
                writeln!(out, "{}", plain(&drawn.line).trim_end())?;
            }
        } else {
            live(&mut observer, &mut view, interval)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print_json(&self, observer: &mut Observer, interval: Duration) -> io::Result<()> {
        let mut snapshot = sample(observer, |_| true);
        loop {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", serde_json::to_string(&snapshot)?)?;
            out.flush()?;
            if self.once {
                return Ok(());
            }
            std::thread::sleep(interval);
            snapshot = observer.sample();
        }
    }
}

/// Returns the text of a line without its styles.
fn plain(line: &Line<'_>) -> String {
    line.spans.iter().map(|span| span.content.as_ref()).collect()
}

/// Shows the view until the user quits or a signal arrives. Restores the terminal in any case.
fn live(observer: &mut Observer, view: &mut View, interval: Duration) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let ends = Ends { is_input: io::stdin().is_terminal() };
    let mut terminal = ratatui::try_init()?;
    // The terminal selects text itself while Shift is held.
    let mouse = Mouse::capture();
    let result = (|| {
        let mut sampled = None::<Instant>;
        while !stop.load(Relaxed) && !view.is_done() && !ends.are_gone(Duration::ZERO) {
            if sampled.is_none_or(|sampled| sampled.elapsed() >= interval) {
                sampled = Some(Instant::now());
                if !view.is_paused {
                    view.update(observer.sample());
                }
            }
            terminal.draw(|frame| {
                let area = frame.area();
                frame.render_widget(Paragraph::new(draw::screen(view, area.width, area.height)), area);
            })?;
            let left = sampled.map_or(interval, |sampled| interval.saturating_sub(sampled.elapsed()));
            if ends.wait(left)? {
                handle(view, &terminal, &event::read()?)?;
            }
        }
        Ok(())
    })();
    drop(mouse);
    if ends.are_gone(Duration::ZERO) {
        // It cannot be restored, and a message about that would have nowhere to go.
        std::mem::forget(terminal);
        return Ok(());
    }
    ratatui::restore();
    result
}

/// The terminal's ends. Where this is no process of the terminal's session, no signal tells that its other side was closed, and crossterm
/// would read the end of the input again and again.
struct Ends {
    /// Whether the input is the terminal. If not, crossterm opens it by its name.
    is_input: bool,
}

impl Ends {
    /// Returns whether the other side of the terminal was closed. Waits for that, or for input, at most for a time.
    fn are_gone(&self, wait: Duration) -> bool {
        let (input, output) = (io::stdin(), io::stdout());
        let mut ends = vec![PollFd::new(&output, PollFlags::empty())];
        if self.is_input {
            ends.push(PollFd::new(&input, PollFlags::IN));
        }
        // Fails when a signal arrives, such as that of a new size.
        let is_polled = poll(&mut ends, Timespec::try_from(wait).ok().as_ref()).is_ok();
        is_polled && ends.iter().any(|end| end.revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }

    /// Waits for an event, at most for a time. Returns whether there is one.
    fn wait(&self, wait: Duration) -> io::Result<bool> {
        if !self.is_input {
            return event::poll(wait);
        }
        if self.are_gone(Duration::ZERO) {
            return Ok(false);
        }
        Ok(event::poll(Duration::ZERO)? || (!self.are_gone(wait) && event::poll(Duration::ZERO)?))
    }
}

/// Handles a key or the mouse.
fn handle(view: &mut View, terminal: &DefaultTerminal, event: &Event) -> io::Result<()> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Press => view.handle_key(*key),
        Event::Mouse(mouse) => {
            let size = terminal.size()?;
            let target = draw::target_at(view, (size.width, size.height), (mouse.column, mouse.row));
            view.handle_mouse(mouse.kind, target);
        }
        _ => {}
    }
    Ok(())
}

/// The terminal reports the mouse while this exists.
struct Mouse;

impl Mouse {
    /// Asks the terminal to report the mouse. One that cannot ignores that.
    fn capture() -> Self {
        let _ = execute!(io::stdout(), EnableMouseCapture);
        Self
    }
}

impl Drop for Mouse {
    fn drop(&mut self) {
        let _ = execute!(io::stdout(), DisableMouseCapture);
    }
}

#[cfg(test)]
mod tests;
