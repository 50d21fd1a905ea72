//! What the charts have in common: scales, paths, and the values that the script shows.

use std::fmt::Write;

use serde::Serialize;

/// The plot of a chart inside of its SVG, in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    /// What lies at the left and the right edge.
    pub(super) from: f64,
    pub(super) to: f64,
    /// What lies at the bottom and the top.
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Frame {
    pub(super) fn x(&self, value: f64) -> f64 {
        let span = (self.to - self.from).max(f64::MIN_POSITIVE);
        self.left + (self.right - self.left) * (value - self.from) / span
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        let span = (self.most - self.least).max(f64::MIN_POSITIVE);
        self.bottom - (self.bottom - self.top) * (value - self.least) / span
    }
}

/// How the script writes a value.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    Bytes,
    Number,
}

/// A line of what is told at a place.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Told {
    pub(super) name: String,
    /// Its class in the style, which has the colour.
    pub(super) class: String,
    pub(super) unit: Unit,
    /// One for each place; null: nothing there.
    pub(super) values: Vec<Option<f64>>,
}

/// What the script shows under the pointer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Hover {
    /// The plot's edges, in the SVG's pixels.
    pub(super) edges: [f64; 4],
    /// Of the SVG.
    pub(super) width: f64,
    /// Where the places are, from left to right.
    pub(super) x: Vec<f64>,
    /// Their headings.
    pub(super) heads: Vec<String>,
    pub(super) told: Vec<Told>,
    /// Whether a zero is told.
    pub(super) zeros: bool,
}

impl Hover {
    /// For the page: JSON that cannot end its element.
    pub(super) fn element(&self) -> String {
        let rounded = |values: &[f64]| values.iter().map(|x| (x * 10.0).round() / 10.0).collect();
        let slim = Hover { x: rounded(&self.x), ..self.clone() };
        // The values are numbers and text: that always has a JSON.
        let json = serde_json::to_string(&slim).unwrap_or_default().replace('<', "\\u003c");
        format!("<script type=\"application/json\">{json}</script>")
    }
}

/// Points as a path of straight lines, with a gap where a value is missing.
pub(super) fn line(points: impl IntoIterator<Item = Option<(f64, f64)>>) -> String {
    let (mut path, mut pen) = (String::new(), 'M');
    for point in points {
        let Some((x, y)) = point else {
            pen = 'M';
            continue;
        };
        // Writing to a string cannot fail, here and below.
        let _ = write!(path, "{pen}{x:.1} {y:.1}");
        pen = 'L';
    }
    path
}

/// Points as a path of steps: each value holds until the next.
pub(super) fn steps(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (place, (x, y)) in points.iter().enumerate() {
        let _ = match place {
            0 => write!(path, "M{x:.1} {y:.1}"),
            _ => write!(path, "H{x:.1}V{y:.1}"),
        };
    }
    path
}

/// Round values that divide `least..most` into three to seven.
pub(super) fn round_ticks(least: f64, most: f64) -> Vec<f64> {
    let rough = (most - least) / 5.0;
    if !rough.is_finite() || rough <= 0.0 {
        return vec![least];
    }
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power);
    let first = (least / step - 1e-9).ceil() as i64;
    (first..).map(|n| n as f64 * step).take_while(|value| *value <= most + 1e-9 * step).collect()
}

/// A number in at most `digits` significant digits.
pub(super) fn short(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { "–".to_owned() };
    }
    let magnitude = value.abs().log10().floor() as i32;
    if magnitude < -4 {
        let text = format!("{value:.*e}", (digits - 1).max(0) as usize);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let mantissa = if mantissa.contains('.') { trimmed(mantissa) } else { mantissa };
        return format!("{mantissa}e{exponent}");
    }
    let text = format!("{value:.*}", (digits - 1 - magnitude).max(0) as usize);
    let text = if text.contains('.') { trimmed(&text).to_owned() } else { text };
    match text.split_once('.') {
        None if magnitude >= 4 => crate::units::grouped(value.abs().round() as u64),
        _ => text,
    }
}

fn trimmed(text: &str) -> &str {
    text.trim_end_matches('0').trim_end_matches('.')
}
