//! Charts of a run's values by step: loss, rewards, throughput, gradient norm, learning rate.

use super::StepPoint;
use super::plot::{Column, Line, Plot, mean};
use super::section::Section;

/// Maximum number of points of a line. Longer histories are binned, and each bin's mean is drawn.
const POINTS: usize = 600;
/// Maximum number of marked steps with non-finite values.
const MARKS: usize = 100;

type Value = fn(&StepPoint) -> Option<f64>;

/// Draws a chart for each kind of value in the history.
pub(super) fn section(history: &[StepPoint], unit: &str) -> Option<Section> {
    let last = history.last()?;
    let speed = format!("{unit} per second");
    let both = || vec![line("training", "s1", false), line("validation", "s2", true)];
    let plain = |name: &str| vec![line(name, "s1", false)];
    let mut speeds: (Vec<Line>, &[Value]) = (plain("all ranks"), &[|point| point.tokens_per_second]);
    if history.iter().any(|point| point.predicted_tokens_per_second.is_some()) {
        speeds.0.push(line("predicted", "s2", false));
        speeds.1 = &[|point| point.tokens_per_second, |point| point.predicted_tokens_per_second];
    }
    let charts: [(&str, Vec<Line>, &[Value], bool); 6] = [
        ("Loss", both(), &[|point| point.loss, |point| point.validation_loss], false),
        (
            "Pairs whose chosen answer has the higher reward",
            both(),
            &[|point| point.reward_accuracy[0], |point| point.reward_accuracy[1]],
            true,
        ),
        (
            "Reward of chosen answers minus that of rejected ones",
            both(),
            &[|point| point.reward_margin[0], |point| point.reward_margin[1]],
            false,
        ),
        (&speed, speeds.0, speeds.1, true),
        ("Gradient norm, before clipping", plain("norm"), &[|point| point.gradient_norm], true),
        ("Learning rate", plain("rate"), &[|point| point.learning_rate], true),
    ];
    let nonfinite = history.iter().filter(|point| !point.is_finite);
    let marks: Vec<f64> = nonfinite.clone().take(MARKS).map(|point| point.step as f64).collect();
    let marked = match nonfinite.count() {
        0 => String::new(),
        count => format!(" In {count}, marked red, the loss or the gradient norm is not finite."),
    };
    let mut body = format!("<p class=\"soft\">{} steps.{marked}</p>\n<div class=\"charts\">\n", last.step);
    for (title, lines, values, from_zero) in charts {
        let columns = columns(history, values);
        let marks = marks.clone();
        body += &Plot { title, lines, columns, from_zero, marks }.draw();
    }
    body += "</div>\n";
    Some(Section { id: "history", title: "History", body })
}

fn line(name: &str, class: &'static str, dots: bool) -> Line {
    Line { name: name.to_owned(), class, dots }
}

fn columns(history: &[StepPoint], values: &[Value]) -> Vec<Column> {
    let length = history.len().div_ceil(POINTS).max(1);
    let column = |stretch: &[StepPoint]| Column {
        step: stretch.last().map_or(0, |point| point.step),
        values: values.iter().map(|value| mean(stretch.iter().filter_map(value))).collect(),
    };
    history.chunks(length).map(column).collect()
}
