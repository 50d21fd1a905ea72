//! Drawing of a schedule as SVG.

use std::fmt::Write;

use super::{chunk, letter, title};
use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::load::{Held, Loads, loads};
use crate::pipeline::schedule::Schedule;
use crate::pipeline::simulate::{Span, Timeline};

const LEFT: f64 = 72.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 84.0;
const BAR: f64 = 28.0;
/// Height of the strip below each row, which shows the number of micro-batches held.
const STRIP: f64 = 16.0;
const ROW: f64 = BAR + STRIP + 14.0;
const BOTTOM: f64 = 44.0;

const INK: &str = "#1f2933";
const FAINT: &str = "#7b8794";
const LINE: &str = "#e4e7eb";
const HELD: &str = "#9aa5b1";
const KEPT: &str = "#e0b07a";

/// Draws a schedule as SVG: one row per rank over a time axis. Each pass is a bar with its micro-batch,
/// coloured by kind, lighter for a rank's later stages. A strip below shows the activations and kept weight
/// halves. Times are in the timeline's unit, named `unit` (may be empty). The result needs no style sheet or
/// script.
pub fn svg(schedule: &Schedule, timeline: &Timeline, unit: &str) -> String {
    let picture = Picture::new(schedule, timeline, unit);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = picture.write(&mut out);
    out
}

struct Picture<'a> {
    schedule: &'a Schedule,
    timeline: &'a Timeline,
    unit: &'a str,
    loads: Loads,
    /// Pixels per unit of time.
    scale: f64,
    width: f64,
    height: f64,
    /// Largest number of activations plus kept weight halves on any rank.
    most: usize,
}

impl<'a> Picture<'a> {
    fn new(schedule: &'a Schedule, timeline: &'a Timeline, unit: &'a str) -> Self {
        let passes = schedule.actions.iter().flatten().zip(timeline.spans.iter().flatten());
        let passes = passes.filter(|(action, span)| action.kind.is_compute() && span.end > span.start);
        let shortest = passes.map(|(_, span)| span.end - span.start).min().unwrap_or(1);
        let makespan = timeline.makespan.max(1) as f64;
        // The shortest pass gets 24 pixels, enough for two digits; the plot is 600 to 2400 pixels wide.
        let plot = (24.0 / shortest as f64 * makespan).clamp(600.0, 2400.0);
        let loads = loads(schedule);
        let sum = |held: &Held| held.activations + held.weights;
        let most = loads.ranks.iter().flat_map(|load| load.during.iter().map(sum)).max().unwrap_or(1).max(1);
        Picture {
            schedule,
            timeline,
            unit,
            loads,
            scale: plot / makespan,
            width: LEFT + plot + RIGHT,
            height: TOP + ROW * schedule.ranks as f64 + BOTTOM,
            most,
        }
    }

    fn x(&self, time: u64) -> f64 {
        LEFT + self.scale * time as f64
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let width = self.width;
        let height = self.height;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\" \
             font-size=\"12\" fill=\"{INK}\">"
        )?;
        writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>")?;
        let title = title(self.schedule, self.timeline);
        writeln!(out, "<text x=\"{LEFT}\" y=\"30\" font-size=\"17\" font-weight=\"600\">{title}</text>")?;
        self.legend(out)?;
        self.axis(out)?;
        for rank in 0..self.schedule.ranks {
            self.row(out, rank)?;
        }
        writeln!(out, "</svg>")
    }

    /// Writes the legend of the colours in use.
    fn legend(&self, out: &mut String) -> std::fmt::Result {
        let all = self.schedule.actions.iter().flatten();
        let occurs = |kind: ActionKind| all.clone().any(|action| action.kind == kind);
        let mut entries: Vec<(String, String)> = PASSES
            .iter()
            .filter(|(kind, ..)| occurs(*kind))
            .map(|(kind, _, name)| (shade(*kind, 0.0), format!("{} {name}", letter(*kind))))
            .collect();
        if self.schedule.chunks() > 1 {
            let last = self.schedule.chunks() - 1;
            entries.push((
                shade(ActionKind::Forward, lightness(last, last + 1)),
                "lighter: the rank's later stages".into(),
            ));
        }
        entries.push((HELD.into(), "activations held".into()));
        if occurs(ActionKind::BackwardWeight) {
            entries.push((KEPT.into(), "kept for the weights".into()));
        }
        let mut x = LEFT;
        for (colour, name) in entries {
            writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"45\" width=\"13\" height=\"13\" rx=\"3\" fill=\"{colour}\"/>"
            )?;
            writeln!(out, "<text x=\"{:.1}\" y=\"56\">{name}</text>", x + 19.0)?;
            x += 19.0 + 6.6 * name.chars().count() as f64 + 22.0;
        }
        Ok(())
    }

    fn axis(&self, out: &mut String) -> std::fmt::Result {
        let bottom = TOP + ROW * self.schedule.ranks as f64;
        let step = tick((60.0 / self.scale).ceil() as u64);
        for time in (0..=self.timeline.makespan).step_by(step as usize) {
            let x = self.x(time);
            writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"{LINE}\"/>",
                TOP - 6.0
            )?;
            writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" \
                 fill=\"{FAINT}\">{}</text>",
                bottom + 14.0,
                grouped(time)
            )?;
        }
        let x = self.x(self.timeline.makespan);
        let y = bottom + 32.0;
        let makespan = grouped(self.timeline.makespan);
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\" font-size=\"11\" \
             fill=\"{FAINT}\">{makespan}{unit} in all</text>"
        )
    }

    fn row(&self, out: &mut String, rank: usize) -> std::fmt::Result {
        let y = TOP + ROW * rank as f64;
        let middle = y + BAR / 2.0 + 4.5;
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\" font-weight=\"600\">rank {rank}</text>",
            LEFT - 12.0
        )?;
        let end = self.x(self.timeline.makespan);
        writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"#f5f7fa\"/>",
            end - LEFT
        )?;
        for (action, span) in self.schedule.actions[rank].iter().zip(&self.timeline.spans[rank]) {
            if action.kind.is_compute() {
                self.bar(out, y, *action, *span)?;
            }
        }
        self.strip(out, rank, y + BAR + 3.0)?;
        let idle = 100.0 * self.timeline.idle(rank);
        writeln!(out, "<text x=\"{:.1}\" y=\"{middle:.1}\">{idle:.1} % idle</text>", end + 12.0)?;
        let peak = self.loads.ranks[rank].peak;
        let weights = if peak.weights > 0 { format!(" · {} kept", peak.weights) } else { String::new() };
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\" fill=\"{FAINT}\">at most {} held{weights}</text>",
            end + 12.0,
            y + BAR + STRIP,
            peak.activations
        )
    }

    fn bar(&self, out: &mut String, y: f64, action: Action, span: Span) -> std::fmt::Result {
        let x = self.x(span.start);
        let width = self.scale * (span.end - span.start) as f64;
        let lightness = lightness(chunk(self.schedule, action), self.schedule.chunks());
        let fill = shade(action.kind, lightness);
        let Span { start, end } = span;
        let gap = (width / 8.0).min(1.0);
        writeln!(
            out,
            "<g><title>{action}: {start} to {end}</title><rect x=\"{:.2}\" y=\"{y:.1}\" width=\"{:.2}\" \
             height=\"{BAR}\" rx=\"{:.1}\" fill=\"{fill}\"/>",
            x + gap / 2.0,
            width - gap,
            (width / 6.0).min(3.0)
        )?;
        let label = action.micro_batch.to_string();
        if width >= 7.5 * label.len() as f64 + 3.0 {
            let ink = if lightness > 0.35 { INK } else { "#ffffff" };
            writeln!(
                out,
                "<text x=\"{:.2}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{label}</text>",
                x + width / 2.0,
                y + BAR / 2.0 + 4.5
            )?;
        }
        writeln!(out, "</g>")
    }

    /// Draws the activations held over time, with the kept weight halves on top.
    fn strip(&self, out: &mut String, rank: usize, top: f64) -> std::fmt::Result {
        let changes = self.timeline.over_time(self.schedule, rank, &self.loads.ranks[rank]);
        let floor = top + STRIP;
        let height = |count: usize| STRIP * count as f64 / self.most as f64;
        let last = self.timeline.spans[rank].iter().map(|span| span.end).max().unwrap_or(0);
        for (i, (start, held)) in changes.iter().enumerate() {
            let end = changes.get(i + 1).map_or(last, |(next, _)| *next);
            // Half a pixel of overlap hides gaps between neighbours, which are rounded separately.
            let x = self.x(*start);
            let width = self.scale * end.saturating_sub(*start) as f64 + 0.5;
            let mut foot = floor;
            for (count, colour) in [(held.activations, HELD), (held.weights, KEPT)] {
                if count > 0 {
                    foot -= height(count);
                    writeln!(
                        out,
                        "<rect x=\"{x:.2}\" y=\"{foot:.2}\" width=\"{width:.2}\" height=\"{:.2}\" \
                         fill=\"{colour}\" shape-rendering=\"crispEdges\"/>",
                        height(count)
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Kinds of passes with colour and name. The colours are distinguishable for colour-blind readers.
const PASSES: [(ActionKind, [u8; 3], &str); 4] = [
    (ActionKind::Forward, [47, 96, 168], "forward"),
    (ActionKind::Backward, [22, 133, 117], "backward"),
    (ActionKind::BackwardInput, [22, 133, 117], "backward of the input"),
    (ActionKind::BackwardWeight, [201, 112, 24], "backward of the weights"),
];

/// Returns the colour of a pass, mixed with a fraction of white.
fn shade(kind: ActionKind, white: f64) -> String {
    let colour = PASSES.iter().find(|(pass, ..)| *pass == kind).map_or([128; 3], |(_, colour, _)| *colour);
    let [r, g, b] = colour.map(|c| (f64::from(c) + (255.0 - f64::from(c)) * white).round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Returns the fraction of white in the colour of a rank's stage `chunk`: 0 for its first stage, most for its
/// last.
fn lightness(chunk: usize, chunks: usize) -> f64 {
    if chunks < 2 { 0.0 } else { 0.62 * chunk as f64 / (chunks - 1) as f64 }
}

/// Formats a number with a narrow space between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Returns the smallest of 1, 2, 5, 10, 20, 50, … that is at least `least`.
fn tick(least: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for step in [1, 2, 5] {
            if power.saturating_mul(step) >= least {
                return power.saturating_mul(step);
            }
        }
        power = power.saturating_mul(10);
    }
}
