//! Learning curves of several runs in one chart.

use super::plot::{Column, Line, Plot, mean};
use super::section::Section;
use super::{Curve, StepPoint};

/// Maximum number of points of a line. Longer histories are binned, and each bin's mean is drawn.
const POINTS: u64 = 600;
/// CSS classes of the lines' colours; more runs than classes repeat them.
const CLASSES: [&str; 8] = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"];

/// Draws the training and validation losses of all runs by step.
pub(super) fn section(curves: &[Curve]) -> Option<Section> {
    let last = curves.iter().filter_map(|curve| curve.history.last()).map(|point| point.step).max()?;
    let chart = |title, dots, value: fn(&StepPoint) -> Option<f64>| {
        let line = |(curve, class): (&Curve, &&'static str)| Line { name: curve.name.clone(), class, dots };
        let lines = curves.iter().zip(CLASSES.iter().cycle()).map(line).collect();
        let columns = columns(curves, last, value);
        Plot { title, lines, columns, from_zero: false, marks: Vec::new() }.draw()
    };
    let body = format!(
        "<p class=\"soft\">Losses of {} runs by step.</p>\n<div class=\"charts\">\n{}{}</div>\n",
        curves.len(),
        chart("Training loss", false, |point| point.loss),
        chart("Validation loss", true, |point| point.validation_loss)
    );
    Some(Section { id: "curves", title: "Learning curves", body })
}

/// Bins the steps up to `last` and returns each bin's mean value of every run.
fn columns(curves: &[Curve], last: u64, value: fn(&StepPoint) -> Option<f64>) -> Vec<Column> {
    let length = last.div_ceil(POINTS).max(1);
    let stretch = |first: u64| {
        let end = (first + length - 1).min(last);
        let of_run = |curve: &Curve| {
            let from = curve.history.partition_point(|point| point.step < first);
            let to = curve.history.partition_point(|point| point.step <= end);
            mean(curve.history[from..to.max(from)].iter().filter_map(value))
        };
        Column { step: end, values: curves.iter().map(of_run).collect() }
    };
    let all = (1..=last).step_by(usize::try_from(length).unwrap_or(usize::MAX)).map(stretch);
    all.filter(|column| column.values.iter().any(Option::is_some)).collect()
}
