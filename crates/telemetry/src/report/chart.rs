//! Shared parts of charts: scales, axes, paths, and the values that the page's script shows.

use std::fmt::Write;

use serde::Serialize;

/// The plot area of a chart in pixels of its SVG, and the values at its edges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    /// Value of the horizontal axis at the left edge.
    pub(super) from: f64,
    /// Value of the horizontal axis at the right edge.
    pub(super) to: f64,
    /// Value of the vertical axis at the bottom edge.
    pub(super) least: f64,
    /// Value of the vertical axis at the top edge.
    pub(super) most: f64,
}

impl Frame {
    /// Returns the x coordinate of `value`, in pixels.
    pub(super) fn x(&self, value: f64) -> f64 {
        let span = (self.to - self.from).max(f64::MIN_POSITIVE);
        self.left + (self.right - self.left) * (value - self.from) / span
    }

    /// Returns the y coordinate of `value`, in pixels.
    pub(super) fn y(&self, value: f64) -> f64 {
        let span = (self.most - self.least).max(f64::MIN_POSITIVE);
        self.bottom - (self.bottom - self.top) * (value - self.least) / span
    }

    /// Draws a labelled grid line for each tick of the vertical axis.
    pub(super) fn vertical_axis(&self, out: &mut String, ticks: impl IntoIterator<Item = (f64, String)>) {
        let Frame { left, right, .. } = self;
        for (value, text) in ticks {
            let y = self.y(value);
            // Writing to a string cannot fail, here and below.
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{left} {y:.1}H{right}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                left - 8.0,
                y + 4.0
            );
        }
    }

    /// Ends a chart: draws the line under the pointer, closes the SVG, and adds the values for the script.
    pub(super) fn close(&self, out: &mut String, hover: &Hover) {
        let Frame { top, bottom, .. } = self;
        let values = hover.element();
        let _ = writeln!(out, "<path class=\"cross\" d=\"M0 {top}V{bottom}\"/></svg>{values}</figure>");
    }
}

/// How the script formats a value.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    Bytes,
    Number,
}

/// A row of the values shown under the pointer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HoverRow {
    pub(super) name: String,
    /// CSS class, which sets the colour.
    pub(super) class: String,
    pub(super) unit: Unit,
    /// One value for each column; `None` for a gap.
    pub(super) values: Vec<Option<f64>>,
}

/// The values that the script shows under the pointer, by column.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Hover {
    /// Left, right, top and bottom edges of the plot, in pixels of the SVG.
    pub(super) edges: [f64; 4],
    pub(super) width: f64,
    /// Positions of the columns, from left to right.
    pub(super) x: Vec<f64>,
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<HoverRow>,
    /// Whether rows with the value 0 are shown.
    pub(super) zeros: bool,
}

impl Hover {
    /// Returns a script element with the values as JSON, escaped so that it cannot contain the end tag.
    fn element(&self) -> String {
        let rounded = |values: &[f64]| values.iter().map(|x| (x * 10.0).round() / 10.0).collect();
        let slim = Hover { x: rounded(&self.x), ..self.clone() };
        // Numbers and strings always serialize to JSON.
        let json = serde_json::to_string(&slim).unwrap_or_default().replace('<', "\\u003c");
        format!("<script type=\"application/json\">{json}</script>")
    }
}

/// Returns an SVG path of straight lines through points, with a gap at each `None`.
pub(super) fn line(points: impl IntoIterator<Item = Option<(f64, f64)>>) -> String {
    let mut path = String::new();
    let mut pen = 'M';
    for point in points {
        let Some((x, y)) = point else {
            pen = 'M';
            continue;
        };
        let _ = write!(path, "{pen}{x:.1} {y:.1}");
        pen = 'L';
    }
    path
}

/// Returns an SVG path of steps through points: each value holds until the next point.
pub(super) fn steps(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let _ = match index {
            0 => write!(path, "M{x:.1} {y:.1}"),
            _ => write!(path, "H{x:.1}V{y:.1}"),
        };
    }
    path
}

/// Returns three to seven round values between `least` and `most`.
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
