//! Charts of values by step: loss, throughput, gradient norm, learning rate.

use std::fmt::Write;

use super::StepPoint;
use super::chart::{Frame, Hover, HoverRow, Unit, line, round_ticks};
use super::section::Section;
use crate::svg::escape;
use crate::units::significant;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 250.0;
/// Largest number of points of a line. Longer histories are divided into stretches, whose means are drawn.
const POINTS: usize = 600;
/// Largest number of marked steps with values that are not finite.
const MARKS: usize = 100;

/// A line of a chart.
struct Line {
    name: &'static str,
    /// Class in the style sheet, which sets the colour.
    class: &'static str,
    /// Whether each value is drawn as a dot, for values of few steps.
    dots: bool,
    value: fn(&StepPoint) -> Option<f64>,
}

const fn plain(name: &'static str, value: fn(&StepPoint) -> Option<f64>) -> Line {
    Line { name, class: "s1", dots: false, value }
}

/// A chart of one or two lines.
struct Chart<'a> {
    title: &'a str,
    lines: &'a [Line],
    /// Whether the vertical axis begins at 0.
    from_zero: bool,
}

/// Draws a chart for each kind of value in the history.
pub(super) fn section(history: &[StepPoint], unit: &str) -> Option<Section> {
    let last = history.last()?;
    let speed = format!("{unit} per second");
    let validation =
        Line { name: "validation", class: "s2", dots: true, value: |point| point.validation_loss };
    let charts = [
        Chart {
            title: "Loss",
            lines: &[plain("training", |point| point.loss), validation],
            from_zero: false,
        },
        Chart {
            title: &speed,
            lines: &[plain("all ranks", |point| point.tokens_per_second)],
            from_zero: true,
        },
        Chart {
            title: "Gradient norm, before clipping",
            lines: &[plain("norm", |point| point.gradient_norm)],
            from_zero: true,
        },
        Chart {
            title: "Learning rate",
            lines: &[plain("rate", |point| point.learning_rate)],
            from_zero: true,
        },
    ];
    let nonfinite = history.iter().filter(|point| !point.is_finite).count();
    let marked = match nonfinite {
        0 => String::new(),
        count => format!(" In {count}, marked red, the loss or the gradient norm is not finite."),
    };
    let mut body = format!("<p class=\"soft\">{} steps.{marked}</p>\n<div class=\"charts\">\n", last.step);
    body.extend(charts.iter().map(|chart| chart.draw(history)));
    body += "</div>\n";
    Some(Section { id: "history", title: "History", body })
}

/// A point of each line of a chart: the last step of a stretch, and the means over the stretch.
struct Column {
    step: u64,
    /// Means, by line; `None` if the stretch has no value.
    values: Vec<Option<f64>>,
}

impl Chart<'_> {
    fn draw(&self, history: &[StepPoint]) -> String {
        let columns = self.columns(history);
        let Some(frame) = self.frame(&columns) else { return String::new() };
        let mut out = self.open(history);
        let ticks = round_ticks(frame.least, frame.most);
        frame.vertical_axis(&mut out, ticks.into_iter().map(|tick| (tick, significant(tick, 3))));
        for tick in round_ticks(frame.from, frame.to).into_iter().filter(|tick| tick.fract() == 0.0) {
            let (x, y, text) = (frame.x(tick), frame.bottom + 20.0, significant(tick, 7));
            // Writing to a string cannot fail, here and below.
            let _ = write!(
                out,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>"
            );
        }
        for (index, line) in self.lines.iter().enumerate() {
            line.draw(&mut out, &frame, &columns, index);
        }
        mark_nonfinite(&mut out, &frame, history);
        frame.close(&mut out, &self.hover(&frame, &columns));
        out
    }

    fn columns(&self, history: &[StepPoint]) -> Vec<Column> {
        let length = history.len().div_ceil(POINTS).max(1);
        let column = |stretch: &[StepPoint]| Column {
            step: stretch.last().map_or(0, |point| point.step),
            values: self.lines.iter().map(|line| line.mean(stretch)).collect(),
        };
        history.chunks(length).map(column).collect()
    }

    /// Returns the plot's frame; `None` if there is no value.
    fn frame(&self, columns: &[Column]) -> Option<Frame> {
        let values = || columns.iter().flat_map(|column| column.values.iter().flatten().copied());
        let (least, most) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        let least = if self.from_zero { least.min(0.0) } else { least };
        let margin = 0.06 * if most > least { most - least } else { most.abs().max(1.0) };
        let floor = if self.from_zero && least >= 0.0 { 0.0 } else { least - margin };
        let step = |column: Option<&Column>| column.map_or(0.0, |column| column.step as f64);
        let (from, to) = (step(columns.first()), step(columns.last()));
        Some(Frame {
            left: 62.0,
            right: WIDTH - 14.0,
            top: 14.0,
            bottom: HEIGHT - 34.0,
            from,
            to: to.max(from + 1.0),
            least: floor,
            most: most + margin,
        })
    }

    /// Starts the figure: title, key, and the SVG with its description.
    fn open(&self, history: &[StepPoint]) -> String {
        let first = &self.lines[0];
        let end =
            |wins: fn(f64, f64) -> f64| first.values(history).reduce(wins).map(|value| significant(value, 4));
        let range = match (end(f64::min), end(f64::max)) {
            (Some(least), Some(most)) => format!(", from {least} to {most}"),
            _ => String::new(),
        };
        let title = escape(self.title);
        let mut out = format!("<figure class=\"card chart\"><figcaption>{title}");
        if self.lines.len() > 1 {
            for Line { class, name, .. } in self.lines.iter().filter(|line| line.values(history).count() > 0)
            {
                let _ = write!(out, "<span class=\"key\"><i class=\"{class}\"></i>{name}</span>");
            }
        }
        let _ = write!(
            out,
            "</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" tabindex=\"0\" \
             aria-label=\"{title} by step{range}\">"
        );
        out
    }

    fn hover(&self, frame: &Frame, columns: &[Column]) -> Hover {
        let row = |(index, line): (usize, &Line)| HoverRow {
            name: line.name.to_owned(),
            class: line.class.to_owned(),
            unit: Unit::Number,
            values: columns.iter().map(|column| column.values[index]).collect(),
        };
        Hover {
            edges: [frame.left, frame.right, frame.top, frame.bottom],
            width: WIDTH,
            x: columns.iter().map(|column| frame.x(column.step as f64)).collect(),
            heads: columns.iter().map(|column| format!("step {}", column.step)).collect(),
            rows: self.lines.iter().enumerate().map(row).collect(),
            zeros: true,
        }
    }
}

/// Draws a vertical line at each step whose loss or gradient norm is not finite, up to the first [`MARKS`].
fn mark_nonfinite(out: &mut String, frame: &Frame, history: &[StepPoint]) {
    let Frame { left, right, top, bottom, .. } = *frame;
    for point in history.iter().filter(|point| !point.is_finite).take(MARKS) {
        let x = frame.x(point.step as f64).clamp(left, right);
        let _ = write!(out, "<path class=\"lost\" d=\"M{x:.1} {top}V{bottom}\"/>");
    }
}

impl Line {
    /// Returns the finite values of a stretch of steps.
    fn values(&self, stretch: &[StepPoint]) -> impl Iterator<Item = f64> {
        stretch.iter().filter_map(self.value).filter(|value| value.is_finite())
    }

    fn mean(&self, stretch: &[StepPoint]) -> Option<f64> {
        let count = self.values(stretch).count();
        (count > 0).then(|| self.values(stretch).sum::<f64>() / count as f64)
    }

    /// Draws the line whose values are at `index` of each column.
    fn draw(&self, out: &mut String, frame: &Frame, columns: &[Column], index: usize) {
        let at = |column: &Column| Some((frame.x(column.step as f64), frame.y(column.values[index]?)));
        let (points, class) = (columns.iter().map(at), self.class);
        if !self.dots && columns.len() > 1 {
            let _ = write!(out, "<path class=\"line {class}\" d=\"{}\"/>", line(points));
            return;
        }
        // A thin line connects the dots, also over gaps.
        let path = line(points.clone().flatten().map(Some));
        let _ = write!(out, "<path class=\"line thin {class}\" d=\"{path}\"/>");
        for (x, y) in points.flatten() {
            let _ = write!(out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
        }
    }
}
