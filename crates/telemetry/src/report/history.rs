//! Loss, throughput and what else was written of every step.

use std::fmt::Write;

use super::StepPoint;
use super::chart::{Frame, Hover, Told, Unit, line, round_ticks, short};
use super::page::Section;
use crate::svg::escape;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 250.0;
/// Points of a line at most; of more steps a point is the mean of its stretch.
const POINTS: usize = 600;

/// A line, by the step.
struct Line {
    name: &'static str,
    class: &'static str,
    /// Whether there are so few values that each is a dot.
    dots: bool,
    of: fn(&StepPoint) -> Option<f64>,
}

const fn plain(name: &'static str, of: fn(&StepPoint) -> Option<f64>) -> Line {
    Line { name, class: "s1", dots: false, of }
}

/// A chart for each of the values that there are.
pub(super) fn section(history: &[StepPoint], unit: &str) -> Option<Section> {
    let last = history.last()?;
    let speed = format!("{unit} per second");
    let charts: [(&str, &[Line], bool); 4] = [
        (
            "Loss",
            &[
                plain("training", |point| point.loss),
                Line { name: "validation", class: "s2", dots: true, of: |point| point.validation_loss },
            ],
            false,
        ),
        (&speed, &[plain("all ranks", |point| point.tokens_per_second)], true),
        ("Gradient norm, before clipping", &[plain("norm", |point| point.gradient_norm)], true),
        ("Learning rate", &[plain("rate", |point| point.learning_rate)], true),
    ];
    let mut body = format!("<p class=\"soft\">{} steps.</p>\n<div class=\"charts\">\n", last.step);
    for (title, lines, from_zero) in charts {
        body += &chart(history, title, lines, from_zero);
    }
    body += "</div>\n";
    Some(Section { id: "history", title: "History", body })
}

/// A point of what is drawn: its step, and a value for each line.
struct Place {
    step: u64,
    values: Vec<Option<f64>>,
}

/// As many stretches of the history as a picture shows; of each the mean of every line's values.
fn places(history: &[StepPoint], lines: &[Line]) -> Vec<Place> {
    let length = history.len().div_ceil(POINTS).max(1);
    let mean = |stretch: &[StepPoint], line: &Line| {
        let values: Vec<f64> = stretch.iter().filter_map(line.of).filter(|value| value.is_finite()).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let place = |stretch: &[StepPoint]| Place {
        step: stretch.last().map_or(0, |point| point.step),
        values: lines.iter().map(|line| mean(stretch, line)).collect(),
    };
    history.chunks(length).map(place).collect()
}

fn frame(places: &[Place], from_zero: bool) -> Option<Frame> {
    let values: Vec<f64> = places.iter().flat_map(|place| place.values.iter().flatten().copied()).collect();
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    let least = if from_zero { least.min(0.0) } else { least };
    let margin = 0.06 * if most > least { most - least } else { most.abs().max(1.0) };
    let floor = if from_zero && least >= 0.0 { 0.0 } else { least - margin };
    let step = |place: Option<&Place>| place.map_or(0.0, |place| place.step as f64);
    let (from, to) = (step(places.first()), step(places.last()));
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

fn chart(history: &[StepPoint], title: &str, lines: &[Line], from_zero: bool) -> String {
    let places = places(history, lines);
    let Some(frame) = frame(&places, from_zero) else { return String::new() };
    let Frame { left, right, top, bottom, .. } = frame;
    let said = |line: &Line, values: &dyn Fn(f64, f64) -> f64| {
        let all = history.iter().filter_map(line.of).filter(|value| value.is_finite());
        all.reduce(values).map(|value| short(value, 4))
    };
    let first = &lines[0];
    let range = match (said(first, &f64::min), said(first, &f64::max)) {
        (Some(least), Some(most)) => format!(", from {least} to {most}"),
        _ => String::new(),
    };
    let title = escape(title);
    let mut out = format!("<figure class=\"card chart\"><figcaption>{title}");
    // Writing to a string cannot fail, here and below.
    if lines.len() > 1 {
        for shown in lines.iter().filter(|line| history.iter().any(|point| (line.of)(point).is_some())) {
            let _ = write!(out, "<span class=\"key\"><i class=\"{}\"></i>{}</span>", shown.class, shown.name);
        }
    }
    let _ = write!(
        out,
        "</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" tabindex=\"0\" aria-label=\"{title} by \
         step{range}\">"
    );
    for tick in round_ticks(frame.least, frame.most) {
        let (y, text) = (frame.y(tick), short(tick, 3));
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{left} {y:.1}H{right}\"/><text class=\"tick\" x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{text}</text>",
            left - 8.0,
            y + 4.0
        );
    }
    for tick in round_ticks(frame.from, frame.to).into_iter().filter(|tick| tick.fract() == 0.0) {
        let (x, text) = (frame.x(tick), short(tick, 7));
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            bottom + 20.0
        );
    }
    for (index, drawn) in lines.iter().enumerate() {
        let at = |place: &Place| Some((frame.x(place.step as f64), frame.y(place.values[index]?)));
        let (points, class) = (places.iter().map(at), drawn.class);
        match drawn.dots || places.len() == 1 {
            // Values that are far apart are joined all the same.
            true => {
                let path = line(points.clone().flatten().map(Some));
                let _ = write!(out, "<path class=\"line thin {class}\" d=\"{path}\"/>");
                for (x, y) in points.flatten() {
                    let _ = write!(out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
                }
            }
            false => {
                let _ = write!(out, "<path class=\"line {class}\" d=\"{}\"/>", line(points));
            }
        }
    }
    let hover = hover(&frame, &places, lines).element();
    let _ = writeln!(out, "<path class=\"cross\" d=\"M0 {top}V{bottom}\"/></svg>{hover}</figure>");
    out
}

/// What is said of the step under the pointer.
fn hover(frame: &Frame, places: &[Place], lines: &[Line]) -> Hover {
    let told = |(index, line): (usize, &Line)| Told {
        name: line.name.to_owned(),
        class: line.class.to_owned(),
        unit: Unit::Number,
        values: places.iter().map(|place| place.values[index]).collect(),
    };
    Hover {
        edges: [frame.left, frame.right, frame.top, frame.bottom],
        width: WIDTH,
        x: places.iter().map(|place| frame.x(place.step as f64)).collect(),
        heads: places.iter().map(|place| format!("step {}", place.step)).collect(),
        told: lines.iter().enumerate().map(told).collect(),
        zeros: true,
    }
}
