//! Draws a run in a terminal.

use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Gauge, Paragraph, Sparkline};
use ratatui::{Frame, Terminal};
use telemetry::units::{duration, grouped, percent};

use crate::ranks::table;
use crate::run_view::{Point, RunView, State};
use crate::warnings::warnings;

/// Height of a sparkline in rows.
const SPARKLINE: u16 = 3;
/// Height of the header in rows.
const HEAD: u16 = 4;
/// Height of the highest bar of a sparkline, in the sparkline's own unit.
const HIGHEST: f64 = 800.0;

/// Draws all ranks as plain text, `width` characters wide.
#[must_use]
pub fn frame(run: &RunView, width: u16) -> String {
    let ranks = u16::try_from(run.ranks().count()).unwrap_or(u16::MAX);
    let warned = u16::try_from(warnings(run).len()).unwrap_or(u16::MAX);
    let height = (HEAD + SPARKLINE + 4).saturating_add(ranks).saturating_add(warned);
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| draw(frame, run, 0));
    text(terminal.backend().buffer())
}

fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y: u16| -> String {
        let cells = (0..area.width).filter_map(|x| buffer.cell((x, y)));
        cells.map(|cell| cell.symbol().to_owned()).collect::<String>().trim_end().to_owned() + "\n"
    };
    (0..area.height).map(line).collect::<String>().trim_end().to_owned() + "\n"
}

/// Draws the run, with its ranks from index `first` on.
pub(crate) fn draw(frame: &mut Frame<'_>, run: &RunView, first: usize) {
    let warned = warnings(run);
    let [head, ranks, curves, below] = Layout::vertical([
        Constraint::Length(HEAD),
        Constraint::Fill(1),
        Constraint::Length(SPARKLINE + 2),
        Constraint::Length(u16::try_from(warned.len()).unwrap_or(u16::MAX)),
    ])
    .areas(frame.area());
    draw_head(frame, run, head);
    match run.ranks().next() {
        Some(_) => frame.render_widget(table(run, ranks.width, first), ranks),
        None => frame.render_widget(Paragraph::new("no step has been written yet"), ranks),
    }
    let [loss, rate] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2).areas(curves);
    draw_curve(frame, run, loss, "loss", |point| point.loss);
    draw_curve(frame, run, rate, "learning rate", |point| point.learning_rate);
    let lines: Vec<Line<'_>> =
        warned.into_iter().map(|text| Line::from(format!("! {text}")).yellow()).collect();
    frame.render_widget(Paragraph::new(lines), below);
}

fn draw_head(frame: &mut Frame<'_>, run: &RunView, area: Rect) {
    let state = match &run.state {
        State::Unknown => "not begun",
        State::Running => "running",
        State::Ended(ending) => ending,
    };
    let [name, gauge, figures, _] = Layout::vertical([Constraint::Length(1); HEAD as usize]).areas(area);
    let title = Line::from(vec![run.title.clone().bold(), format!("  {state}").into()]);
    frame.render_widget(Paragraph::new(title), name);
    let done = run.last.as_ref().map_or(0, |last| last.step);
    let share = (done as f64 / run.steps.max(1) as f64).clamp(0.0, 1.0);
    let label = format!("step {}/{}", grouped(done), grouped(run.steps));
    frame.render_widget(Gauge::default().ratio(share).label(label).style(Style::new().cyan()), gauge);
    frame.render_widget(Paragraph::new(figures_of(run)), figures);
}

/// Describes loss, speed and the remaining time.
fn figures_of(run: &RunView) -> String {
    let Some(last) = &run.last else { return String::new() };
    let words = [
        last.loss.map(|loss| format!("loss {loss:.4}")),
        run.validation_loss.map(|loss| format!("validation {loss:.4}")),
        last.learning_rate.map(|rate| format!("learning rate {rate:.3e}")),
        last.tokens_per_second.map(|speed| format!("{} {}", grouped(speed.round() as u64), run.unit)),
        last.mfu.map(|mfu| format!("MFU {}", percent(mfu))),
        last.seconds.map(|seconds| format!("{:.1} ms a step", 1000.0 * seconds)),
        last.predicted_seconds.map(|seconds| format!("predicted {:.1}", 1000.0 * seconds)),
        run.seconds_left().map(|seconds| format!("eta {}", duration(seconds))),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join("   ")
}

fn draw_curve(
    frame: &mut Frame<'_>,
    run: &RunView,
    area: Rect,
    name: &str,
    value: impl Fn(&Point) -> Option<f64>,
) {
    let [title, bars, _] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(SPARKLINE), Constraint::Length(1)])
            .areas(area);
    let values: Vec<f64> = run.points.iter().filter_map(value).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let Some(last) = values.last() else { return };
    let number = |value: f64| if value.abs() < 0.01 { format!("{value:.2e}") } else { format!("{value:.4}") };
    let text = format!("{name} {}, from {} to {}", number(*last), number(least), number(most));
    frame.render_widget(Paragraph::new(text), title);
    // A constant value is drawn at half of the height.
    let height = |value: f64| match most - least {
        0.0 => HIGHEST / 2.0,
        range => HIGHEST * (0.05 + 0.95 * (value - least) / range),
    };
    let bars_of: Vec<u64> = thinned(&values, bars.width.into()).map(|value| height(value) as u64).collect();
    frame.render_widget(Sparkline::default().data(bars_of).max(HIGHEST as u64).cyan(), bars);
}

/// Returns at most `count` means, each over consecutive values.
fn thinned(values: &[f64], count: usize) -> impl Iterator<Item = f64> + '_ {
    let length = values.len().div_ceil(count.max(1)).max(1);
    values.chunks(length).map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64)
}

#[cfg(test)]
mod tests;
