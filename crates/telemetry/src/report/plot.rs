//! A line chart over steps.

use std::fmt::Write;

use super::chart::{Frame, Hover, HoverRow, Unit, line, round_ticks};
use crate::svg::escape;
use crate::units::significant;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 250.0;

pub(super) struct Line {
    pub(super) name: String,
    /// CSS class, which sets the colour.
    pub(super) class: &'static str,
    /// Whether values are drawn as dots, for lines with few values.
    pub(super) dots: bool,
}

/// The mean of each line over a bin of steps.
pub(super) struct Column {
    pub(super) step: u64,
    /// Mean of each line; `None` if the line has no value in the bin.
    pub(super) values: Vec<Option<f64>>,
}

/// A chart of one or more lines.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) lines: Vec<Line>,
    pub(super) columns: Vec<Column>,
    /// Whether the vertical axis begins at 0.
    pub(super) from_zero: bool,
    /// Steps marked by a vertical line.
    pub(super) marks: Vec<f64>,
}

/// Returns the mean of the finite values; `None` without finite values.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values
        .filter(|value| value.is_finite())
        .fold((0_u64, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / count as f64)
}

impl Plot<'_> {
    /// Returns the chart as an HTML figure; empty without values.
    pub(super) fn draw(&self) -> String {
        let Some(frame) = self.frame() else { return String::new() };
        let mut out = self.open();
        let ticks = round_ticks(frame.least, frame.most);
        frame.vertical_axis(&mut out, ticks.into_iter().map(|tick| (tick, significant(tick, 3))));
        for tick in round_ticks(frame.from, frame.to).into_iter().filter(|tick| tick.fract() == 0.0) {
            let x = frame.x(tick);
            let y = frame.bottom + 20.0;
            let text = significant(tick, 7);
            // Writing to a string cannot fail, here and below.
            let _ = write!(
                out,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>"
            );
        }
        for (index, line) in self.lines.iter().enumerate() {
            self.draw_line(&mut out, &frame, index, line);
        }
        let Frame { left, right, top, bottom, .. } = frame;
        for step in &self.marks {
            let x = frame.x(*step).clamp(left, right);
            let _ = write!(out, "<path class=\"lost\" d=\"M{x:.1} {top}V{bottom}\"/>");
        }
        frame.close(&mut out, &self.hover(&frame));
        out
    }

    fn values(&self, index: usize) -> impl Iterator<Item = f64> {
        self.columns.iter().filter_map(move |column| column.values[index])
    }

    /// Returns the plot area and the values at its edges; `None` without values.
    fn frame(&self) -> Option<Frame> {
        let values = || self.columns.iter().flat_map(|column| column.values.iter().flatten().copied());
        let least = values().reduce(f64::min)?;
        let most = values().reduce(f64::max)?;
        let least = if self.from_zero { least.min(0.0) } else { least };
        let margin = 0.06 * if most > least { most - least } else { most.abs().max(1.0) };
        let floor = if self.from_zero && least >= 0.0 { 0.0 } else { least - margin };
        let step = |column: Option<&Column>| column.map_or(0.0, |column| column.step as f64);
        let from = step(self.columns.first());
        let to = step(self.columns.last());
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

    /// Starts the figure: title, legend, and the SVG with its description.
    fn open(&self) -> String {
        let end = |wins: fn(f64, f64) -> f64| self.values(0).reduce(wins).map(|value| significant(value, 4));
        let range = match (end(f64::min), end(f64::max)) {
            (Some(least), Some(most)) => format!(", from {least} to {most}"),
            _ => String::new(),
        };
        let title = escape(self.title);
        let mut out = format!("<figure class=\"card chart\"><figcaption>{title}");
        if self.lines.len() > 1 {
            let lines = self.lines.iter().enumerate().filter(|(index, _)| self.values(*index).count() > 0);
            for (_, Line { class, name, .. }) in lines {
                let name = escape(name);
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

    fn hover(&self, frame: &Frame) -> Hover {
        let row = |(index, line): (usize, &Line)| HoverRow {
            name: line.name.clone(),
            class: line.class.to_owned(),
            unit: Unit::Number,
            values: self.columns.iter().map(|column| column.values[index]).collect(),
        };
        Hover {
            edges: [frame.left, frame.right, frame.top, frame.bottom],
            width: WIDTH,
            x: self.columns.iter().map(|column| frame.x(column.step as f64)).collect(),
            heads: self.columns.iter().map(|column| format!("step {}", column.step)).collect(),
            rows: self.lines.iter().enumerate().map(row).collect(),
            zeros: true,
        }
    }

    fn draw_line(&self, out: &mut String, frame: &Frame, index: usize, of: &Line) {
        let at = |column: &Column| Some((frame.x(column.step as f64), frame.y(column.values[index]?)));
        let points = self.columns.iter().map(at);
        let class = of.class;
        if !of.dots && self.columns.len() > 1 {
            let _ = write!(out, "<path class=\"line {class}\" d=\"{}\"/>", line(points));
            return;
        }
        // A thin line connects the dots, across gaps too.
        let path = line(points.clone().flatten().map(Some));
        let _ = write!(out, "<path class=\"line thin {class}\" d=\"{path}\"/>");
        for (x, y) in points.flatten() {
            let _ = write!(out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
        }
    }
}
