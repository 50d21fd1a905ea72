//! The interactive view in a terminal, redrawn when files or keys change.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use run::RunError;
use system::terminal;

use crate::draw::{draw, frame};
use crate::run_view::RunView;

/// Interval at which files are read.
const PERIOD: Duration = Duration::from_millis(500);
/// Width in characters when writing to a file or a pipe.
const PLAIN_WIDTH: u16 = 160;

/// An error of a view.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// There is no run, or its files cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The terminal cannot be read or written.
    #[error(transparent)]
    Terminal(#[from] std::io::Error),
}

/// Shows the run in `run_dir` until the user presses `q`. If standard output is not a terminal or `once` is
/// true, prints it once as plain text.
///
/// # Errors
/// There is no run, or a file or the terminal cannot be read or written.
pub fn watch(run_dir: &Path, once: bool) -> Result<(), WatchError> {
    let mut run = RunView::open(run_dir)?;
    run.refresh()?;
    if once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Ok(terminal::print_to_reader(&frame(&run, PLAIN_WIDTH))?);
    }
    let mut screen = ratatui::try_init()?;
    let shown = show(&mut screen, &mut run);
    ratatui::try_restore()?;
    shown
}

fn show(screen: &mut DefaultTerminal, run: &mut RunView) -> Result<(), WatchError> {
    let mut first = 0;
    loop {
        run.refresh()?;
        screen.draw(|frame| draw(frame, run, first))?;
        if !event::poll(PERIOD)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if leaves(key) {
            return Ok(());
        }
        match key.code {
            KeyCode::Down => first = (first + 1).min(run.ranks().count().saturating_sub(1)),
            KeyCode::Up => first = first.saturating_sub(1),
            _ => {}
        }
    }
}

fn leaves(key: KeyEvent) -> bool {
    let interrupts = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (interrupts || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
