//! Plots of efficiency and peak memory over the number of ranks, as self-contained SVGs.

use std::fmt::Write;

use super::ScalingRun;
use super::alone::Alone;
use super::series::{Series, alike, describe, series};
use crate::svg::{byte_ticks, escape};
use crate::units::{axis_bytes, bytes, percent};

mod labels;

use labels::{Label, spread};

const STYLE: &str = include_str!("plot.css");
const WIDTH: f64 = 940.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 84.0;
/// Right edge of the plot in pixels; labels follow.
const RIGHT: f64 = 600.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 412.0;
/// Colours of series, chosen to be distinct for most eyes on white and on black.
const COLOURS: [&str; 8] =
    ["#4477aa", "#ee6677", "#228833", "#aa3377", "#ccaa22", "#33aacc", "#ee8833", "#8877cc"];

/// Plots efficiency over the number of ranks: a line for every series of at least two runs, and a dashed line
/// relative to the devices alone if that was measured.
#[must_use]
pub fn efficiency_plot(runs: &[ScalingRun]) -> String {
    let all: Vec<_> = series(runs).into_iter().filter(|series| series.runs.len() > 1).collect();
    let alone = Alone::among(runs);
    let shown: Vec<f64> = all
        .iter()
        .flat_map(|series| series.runs.iter().map(move |run| (series, run)))
        .flat_map(|(series, run)| [Some(series.efficiency(run)), alone.against(run)])
        .flatten()
        .collect();
    let (least, most) =
        (shown.iter().copied().fold(1.0, f64::min), shown.iter().copied().fold(1.0, f64::max));
    // The axis does not start at 0, so that values near 100 % can be distinguished.
    let step = [0.01, 0.02, 0.05, 0.1].into_iter().find(|step| most - least < 6.0 * step).unwrap_or(0.2);
    let floor = ((least / step - 0.3).floor() * step).max(0.0);
    let base = all.iter().map(|series| series.base_ranks()).max().unwrap_or(1);
    let base = if base == 1 { "one rank".to_owned() } else { format!("{base} ranks") };
    let title = "Scaling efficiency: tokens per second and rank";
    let (title, key) = match alone.is_empty() {
        true => (format!("{title}, relative to {base}"), String::new()),
        false => (
            title.to_owned(),
            format!("solid: relative to {base}; dashed: to the same devices alone, all at once"),
        ),
    };
    let mut plot = Plot::open(&title, &key, runs, &all, (floor, most + step / 2.0));
    let first = (floor / step).round() as i32;
    let values = (first..).map(|n| f64::from(n) * step).take_while(|value| *value <= plot.most);
    let lines: Vec<_> = values.map(|value| (value, format!("{:.0} %", 100.0 * value))).collect();
    plot.grid(&lines);
    plot.level("ideal", 1.0);
    for (series, colour) in all.iter().zip(COLOURS.iter().cycle()) {
        let against_alone = |value: f64| format!("{} against alone", percent(value));
        let curve =
            Curve { series, colour, class: "solid", value: &|run| alone.against(run), text: &percent };
        plot.curve(&Curve { value: &|run| Some(series.efficiency(run)), ..curve });
        plot.curve(&Curve { class: "dashed", text: &against_alone, ..curve });
    }
    plot.close(all.is_empty())
}

/// Plots peak memory over the number of ranks, on the rank with the most. Each run is a bar, with allocated
/// bytes in front of reserved bytes.
#[must_use]
pub fn memory_plot(runs: &[ScalingRun]) -> String {
    let all = series(runs);
    let most = runs.iter().map(ScalingRun::peak_reserved).max().unwrap_or(0).max(1);
    let key = "solid: allocated; pale: reserved";
    let mut plot =
        Plot::open("Peak memory of the rank with the most", key, runs, &all, (0.0, most as f64 * 1.04));
    plot.inset = (RIGHT - LEFT) / (2 * plot.ranks.len().max(1)) as f64;
    let lines: Vec<_> =
        byte_ticks(plot.most as u64).into_iter().map(|tick| (tick as f64, axis_bytes(tick))).collect();
    plot.grid(&lines);
    for (index, (series, colour)) in all.iter().zip(COLOURS.iter().cycle()).enumerate() {
        plot.bars(series, colour, (index, all.len()));
        let Some(last) = series.runs.last() else { continue };
        let ends = if last.ranks == 1 { "" } else { "s" };
        let value = format!("{} on {} rank{ends}", bytes(last.peak_allocated()), last.ranks);
        plot.labels.push(Label { end: None, y: TOP + 8.0, colour, name: series.name(), value });
    }
    plot.close(all.is_empty())
}

/// A line through one value of each run in a series.
#[derive(Clone, Copy)]
struct Curve<'a> {
    series: &'a Series<'a>,
    colour: &'static str,
    /// CSS class.
    class: &'static str,
    /// Returns a run's value, if it has one.
    value: &'a dyn Fn(&ScalingRun) -> Option<f64>,
    text: &'a dyn Fn(f64) -> String,
}

struct Plot {
    page: String,
    ranks: Vec<usize>,
    /// Pixels from the edges of the plot to the first and the last number of ranks.
    inset: f64,
    least: f64,
    most: f64,
    labels: Vec<Label>,
}

impl Plot {
    fn open(
        title: &str,
        key: &str,
        runs: &[ScalingRun],
        all: &[Series<'_>],
        (least, most): (f64, f64),
    ) -> Self {
        let mut ranks: Vec<usize> =
            all.iter().flat_map(|series| series.runs.iter().map(|run| run.ranks)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let under = match runs.first() {
            Some(first) if alike(runs) => describe(first),
            Some(_) => "several models or devices".to_owned(),
            None => "no runs".to_owned(),
        };
        let under = if key.is_empty() { under } else { format!("{under}; {key}") };
        let title = escape(title);
        let under = escape(&under);
        let page = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
             <text class=\"ink title\" x=\"24\" y=\"36\">{title}</text>\n\
             <text class=\"soft\" x=\"24\" y=\"58\">{under}</text>\n"
        );
        Plot { page, ranks, inset: 36.0, least, most, labels: Vec::new() }
    }

    /// Returns the x coordinate of a number of ranks on a logarithmic scale, in pixels.
    fn x(&self, ranks: usize) -> f64 {
        let log = |ranks: usize| (ranks.max(1) as f64).log2();
        let (Some(first), Some(last)) = (self.ranks.first(), self.ranks.last()) else { return LEFT };
        let from = LEFT + self.inset;
        let to = RIGHT - self.inset;
        match first == last {
            true => f64::midpoint(from, to),
            false => from + (to - from) * (log(ranks) - log(*first)) / (log(*last) - log(*first)),
        }
    }

    /// Returns the y coordinate of a value, in pixels.
    fn y(&self, value: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * (value - self.least) / (self.most - self.least)
    }

    /// Draws grid lines, the axes and their labels.
    fn grid(&mut self, lines: &[(f64, String)]) {
        for (value, text) in lines {
            let y = self.y(*value);
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(
                self.page,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"soft tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 10.0,
                y + 4.5
            );
        }
        let _ = writeln!(
            self.page,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{BOTTOM}\" y2=\"{BOTTOM}\"/>"
        );
        for ranks in self.ranks.clone() {
            let x = self.x(ranks);
            let _ = writeln!(
                self.page,
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{BOTTOM}\" y2=\"{}\"/>\
                 <text class=\"soft tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{ranks}</text>",
                BOTTOM + 5.0,
                BOTTOM + 21.0
            );
        }
        let x = f64::midpoint(LEFT, RIGHT);
        let y = BOTTOM + 43.0;
        let _ = writeln!(
            self.page,
            "<text class=\"soft\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">ranks</text>"
        );
    }

    fn level(&mut self, class: &str, value: f64) {
        let y = self.y(value);
        let _ = writeln!(
            self.page,
            "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
    }

    /// Draws a line with a point for each run that has a value, and a label at its end.
    fn curve(&mut self, curve: &Curve<'_>) {
        let Curve { series, colour, class, value, text } = *curve;
        let values = series.runs.iter().filter_map(|run| Some((*run, value(run)?)));
        let points_of_runs: Vec<_> =
            values.map(|(run, value)| (run, text(value), self.x(run.ranks), self.y(value))).collect();
        let Some((_, last, end_x, end_y)) = points_of_runs.last() else { return };
        let points =
            points_of_runs.iter().map(|(_, _, x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        let _ =
            writeln!(self.page, "<polyline class=\"line {class}\" stroke=\"{colour}\" points=\"{points}\"/>");
        for (run, text, x, y) in &points_of_runs {
            let title = hint(series, run, text);
            let _ = writeln!(
                self.page,
                "<circle class=\"{class}\" stroke=\"{colour}\" fill=\"{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" \
                 r=\"4\">{title}</circle>"
            );
        }
        let end = Some((*end_x, *end_y));
        let name = series.name();
        let value = last.clone();
        self.labels.push(Label { end, y: *end_y, colour, name, value });
    }

    /// Draws the bars of series `index` of `count`, beside the other series' bars.
    fn bars(&mut self, series: &Series<'_>, colour: &str, (index, count): (usize, usize)) {
        let closest = self.ranks.windows(2).map(|pair| self.x(pair[1]) - self.x(pair[0]));
        let width = (0.8 * closest.fold(140.0, f64::min) / count as f64).min(24.0);
        for run in &series.runs {
            let x = self.x(run.ranks) + width * (index as f64 - count as f64 / 2.0);
            let allocated = run.peak_allocated();
            let reserved = run.peak_reserved().max(run.peak_allocated());
            let low = self.y(allocated as f64);
            let high = self.y(reserved as f64);
            let text = format!("{} allocated, {} reserved", bytes(allocated), bytes(reserved));
            let title = hint(series, run, &text);
            for (opacity, top, bottom) in [("0.35", high, low), ("1", low, BOTTOM)] {
                let _ = writeln!(
                    self.page,
                    "<rect fill=\"{colour}\" fill-opacity=\"{opacity}\" x=\"{:.1}\" y=\"{top:.1}\" \
                     width=\"{:.1}\" height=\"{:.1}\">{title}</rect>",
                    x + 1.0,
                    width - 2.0,
                    bottom - top
                );
            }
        }
    }

    /// Draws the labels and returns the SVG.
    fn close(mut self, empty: bool) -> String {
        if empty {
            let x = f64::midpoint(LEFT, RIGHT);
            let y = f64::midpoint(TOP, BOTTOM);
            let text = "nothing to compare: measure two numbers of ranks";
            let _ = writeln!(
                self.page,
                "<text class=\"soft\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>"
            );
        }
        spread(&mut self.labels, (TOP, BOTTOM));
        for Label { end, y, colour, name, value } in &self.labels {
            let to = RIGHT + 12.0;
            if let Some((x, end_y)) = end {
                let from = x + 8.0;
                let _ = writeln!(
                    self.page,
                    "<path class=\"leader\" fill=\"none\" d=\"M{from:.1} {end_y:.1}H{RIGHT}L{to} {y:.1}\"/>"
                );
            }
            let x = to + 6.0;
            let y = y + 4.5;
            let name = escape(name);
            let value = escape(value);
            let _ = writeln!(
                self.page,
                "<text class=\"label\" x=\"{x}\" y=\"{y:.1}\">\
                 <tspan font-weight=\"600\" fill=\"{colour}\">{name}</tspan>\
                 <tspan class=\"ink\" dx=\"8\">{value}</tspan></text>"
            );
        }
        self.page += "</svg>\n";
        self.page
    }
}

fn hint(series: &Series<'_>, run: &ScalingRun, text: &str) -> String {
    let ends = if run.ranks == 1 { "" } else { "s" };
    format!("<title>{}</title>", escape(&format!("{}, {} rank{ends}: {text}", series.name(), run.ranks)))
}
