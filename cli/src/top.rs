//! `vgpu top`: a live view of who uses which GPU.

mod detail;
mod draw;
mod view;
mod widgets;

use crate::config_args::ConfigArgs;
use crate::outcome::Outcome;
use crate::show::twice;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vgpu_monitor::observer::Observer;
use view::{Sort, View};

/// Watch GPUs and the containers on them
///
/// For each container: memory held of its limit, GPU time used of its limit with the last seconds, the part of the time in which its
/// launches were held back, its processes, and how long ago it was first refused memory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Print JSON, one line for each look
    #[arg(long)]
    json: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// What comes first
    #[arg(long, value_enum, default_value_t = Sort::Memory)]
    sort: Sort,
    /// Only containers whose name or id contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    #[command(flatten)]
    config: ConfigArgs,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "accepted is a number of seconds from 0.1 to 3600".to_owned())
}

/// Where nobody says how wide the terminal is.
const USUAL_WIDTH: u16 = 80;

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let mut observer = Observer::new(&self.config.state_dir()?);
        let mut view = View::new(self.sort, self.filter.clone());
        let interval = Duration::from_secs_f64(self.interval);
        if self.json {
            self.print_json(&mut observer, interval)?;
        } else if self.once || !io::stdout().is_terminal() {
            view.take(twice(&mut observer));
            let width = ratatui::crossterm::terminal::size().map_or(USUAL_WIDTH, |(width, _)| width.max(USUAL_WIDTH));
            let mut out = io::stdout().lock();
            for line in draw::body(&view, width) {
                writeln!(out, "{}", plain(&line).trim_end())?;
            }
        } else {
            live(&mut observer, &mut view, interval)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print_json(&self, observer: &mut Observer, interval: Duration) -> io::Result<()> {
        let mut snapshot = twice(observer);
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

fn plain(line: &Line<'_>) -> String {
    line.spans.iter().map(|span| span.content.as_ref()).collect()
}

/// Shows the view until the user has seen enough. The terminal is given back as it was, whatever happens.
fn live(observer: &mut Observer, view: &mut View, interval: Duration) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut terminal = ratatui::try_init()?;
    let done = (|| {
        let mut looked = None::<Instant>;
        while !stop.load(Relaxed) && !view.is_done() {
            if looked.is_none_or(|looked| looked.elapsed() >= interval) {
                looked = Some(Instant::now());
                view.take(observer.sample());
            }
            terminal.draw(|frame| {
                let area = frame.area();
                frame.render_widget(Paragraph::new(draw::screen(view, area.width, area.height)), area);
            })?;
            let left = looked.map_or(interval, |looked| interval.saturating_sub(looked.elapsed()));
            if event::poll(left)?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                view.press(key);
            }
        }
        Ok(())
    })();
    ratatui::restore();
    done
}

#[cfg(test)]
mod tests;
