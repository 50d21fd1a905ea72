//! Memory over a step, stacked by category.

use std::fmt::Write;

use memory::Category;

use super::RankMemory;
use super::chart::{Frame, Hover, HoverRow, Unit, steps};
use crate::step_trace::{Curve, Peak, Point, Span, StepTrace, words};
use crate::svg::{byte_ticks, escape};
use crate::units::{axis_bytes, bytes, grouped};

const WIDTH: f64 = 1120.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - 18.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = HEIGHT - 58.0;
/// Maximum number of columns of the drawing.
const COLUMNS: usize = 900;

/// Draws the memory of `rank` over the step of `trace`.
pub(super) fn drawing(rank: &RankMemory, trace: &StepTrace) -> String {
    let full = trace.curve();
    let peak = trace.peak();
    let thin = full.thinned(COLUMNS);
    let plan = rank.differing_plan().map(StepTrace::curve);
    let most = full.points.iter().map(|point| point.reserved.max(point.bytes.total())).max().unwrap_or(0);
    let planned = plan.iter().flat_map(|plan| &plan.points).map(|point| point.bytes.total()).max();
    let most = most.max(planned.unwrap_or(0)).max(1);
    // A limit far above the peak would leave the drawing mostly empty.
    let limit = rank.limit.filter(|limit| *limit < most + most / 2);
    let most = most.max(limit.unwrap_or(0));
    let frame = Frame {
        left: LEFT,
        right: RIGHT,
        top: TOP,
        bottom: BOTTOM,
        from: 0.0,
        to: (full.points.len().max(2) - 1) as f64,
        least: 0.0,
        most: most as f64 * 1.03,
    };
    let what = if rank.measured.is_some() { "measured" } else { "planned" };
    let mut out = legend(&full, rank);
    let _ = write!(
        out,
        "<figure class=\"card chart\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" tabindex=\"0\" \
         aria-label=\"Memory over {}, {what}: at most {} allocated, in {}\">",
        trace.part.of_step(trace.step),
        bytes(peak.bytes),
        escape(&peak.phase),
    );
    frame.vertical_axis(&mut out, byte_ticks(most).into_iter().map(|tick| (tick as f64, axis_bytes(tick))));
    phases(&mut out, frame, &full.spans);
    areas(&mut out, frame, &thin.points);
    outline(&mut out, frame, "held-line", thin.points.iter().map(|p| (p.events, p.reserved)));
    if let Some(plan) = &plan {
        let points = plan.thinned(COLUMNS).points;
        outline(&mut out, frame, "plan-line", points.iter().map(|p| (p.events, p.bytes.total())));
    }
    if let Some(limit) = limit {
        let y = frame.y(limit as f64);
        let _ = write!(
            out,
            "<path class=\"limit\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">limit {}</text>",
            RIGHT - 6.0,
            y - 5.0,
            bytes(limit)
        );
    }
    summit(&mut out, frame, &peak);
    frame.close(&mut out, &hover(frame, &thin, &full.spans));
    out
}

/// Returns the categories that occur, each with its maximum bytes.
fn shown(points: &[Point]) -> impl Iterator<Item = (Category, u64)> + '_ {
    let most = |category: Category| points.iter().map(|point| point.bytes.get(category)).max().unwrap_or(0);
    Category::ALL.into_iter().map(move |category| (category, most(category))).filter(|(_, most)| *most > 0)
}

fn legend(full: &Curve, rank: &RankMemory) -> String {
    let mut out = "<p class=\"legend\">".to_owned();
    for (category, most) in shown(&full.points) {
        let class = category.name();
        let name = words(category);
        let most = bytes(most);
        let _ = write!(out, "<span><i class=\"{class}\"></i>{name} <b>≤ {most}</b></span>");
    }
    let held = bytes(full.peak_reserved());
    let _ = write!(out, "<span><i class=\"held-key\"></i>reserved from the device <b>≤ {held}</b></span>");
    match (&rank.measured, &rank.planned) {
        (Some(_), Some(_)) if rank.differing_plan().is_none() => {
            out += "<span class=\"same\">✓ measured and planned are the same, call by call</span>";
        }
        (Some(_), Some(_)) => out += "<span><i class=\"plan-key\"></i>planned</span>",
        (None, Some(_)) => out += "<span class=\"same\">planned</span>",
        (Some(_), None) => out += "<span class=\"same\">measured, without a plan</span>",
        (None, None) => {}
    }
    out += "</p>\n";
    out
}

/// Draws a strip of phases below the plot, and a strip of micro-batches if there are several.
fn phases(out: &mut String, frame: Frame, spans: &[Span]) {
    const PHASES: [&str; 5] = ["inputs", "forward", "backward", "reduce", "optimizer"];
    let batches = spans.iter().filter_map(|span| span.micro_batch).max().unwrap_or(0);
    for span in spans {
        let from = frame.x(span.from as f64);
        let to = frame.x(span.to as f64);
        let width = to - from;
        let class = PHASES.iter().position(|name| *name == span.phase).map_or(9, |index| index);
        let _ = write!(
            out,
            "<rect class=\"phase p{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\"/>",
            BOTTOM + 5.0,
            width.max(0.4)
        );
        if width > 5.8 * span.phase.chars().count() as f64 + 3.0 {
            let _ = write!(
                out,
                "<text class=\"phase-name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                f64::midpoint(from, to),
                BOTTOM + 17.0,
                escape(&span.phase)
            );
        }
    }
    if batches == 0 {
        return;
    }
    for group in spans.chunk_by(|a, b| (a.micro_batch, a.stage) == (b.micro_batch, b.stage)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let Some(number) = first.micro_batch else { continue };
        let from = frame.x(first.from as f64);
        let to = frame.x(last.to as f64);
        let _ = write!(out, "<path class=\"grid\" d=\"M{from:.1} {TOP}V{:.1}\"/>", BOTTOM + 38.0);
        let name = match (to - from > 96.0, to - from > 18.0) {
            (true, _) => format!("micro-batch {number}"),
            (_, true) => number.to_string(),
            _ => continue,
        };
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
            f64::midpoint(from, to),
            BOTTOM + 36.0
        );
    }
}

/// Draws an area for each category, stacked on the previous ones.
fn areas(out: &mut String, frame: Frame, points: &[Point]) {
    let mut below = vec![0_u64; points.len()];
    for (category, _) in shown(points) {
        let at = |heights: &[u64]| -> Vec<(f64, f64)> {
            let each = points.iter().zip(heights);
            each.map(|(point, height)| (frame.x(point.events as f64), frame.y(*height as f64))).collect()
        };
        let floor = at(&below);
        for (sum, point) in below.iter_mut().zip(points) {
            *sum += point.bytes.get(category);
        }
        let roof = steps(&at(&below));
        // On the way back, a step goes up or down before it goes left.
        let mut back = String::new();
        for (index, (x, y)) in floor.iter().enumerate().rev() {
            let _ = match index + 1 == floor.len() {
                true => write!(back, "V{y:.1}"),
                false => write!(back, "V{y:.1}H{x:.1}"),
            };
        }
        let _ = write!(out, "<path class=\"area {}\" d=\"{roof}{back}Z\"/>", category.name());
    }
}

/// Draws a line through `points`, pairs of an event index and bytes.
fn outline(out: &mut String, frame: Frame, class: &str, points: impl Iterator<Item = (usize, u64)>) {
    let at = |(events, height): (usize, u64)| (frame.x(events as f64), frame.y(height as f64));
    let path = steps(&points.map(at).collect::<Vec<_>>());
    let _ = write!(out, "<path class=\"{class}\" d=\"{path}\"/>");
}

fn summit(out: &mut String, frame: Frame, peak: &Peak) {
    let x = frame.x(peak.events as f64);
    let y = frame.y(peak.bytes as f64);
    let module = peak.owner.as_ref().map_or("", |owner| owner.module.as_str());
    let index = [peak.phase.as_str(), module].into_iter().filter(|part| !part.is_empty());
    let text = format!("{} · {}", bytes(peak.bytes), index.collect::<Vec<_>>().join(" · "));
    let half = 3.6 * text.chars().count() as f64;
    let at = x.clamp(LEFT + half, RIGHT - half);
    let _ = write!(
        out,
        "<circle class=\"summit\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>the peak: {} bytes</title>\
         </circle>\
         <text class=\"summit-name\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        grouped(peak.bytes),
        (y - 12.0).max(14.0),
        escape(&text)
    );
}

fn hover(frame: Frame, thin: &Curve, spans: &[Span]) -> Hover {
    let head = |point: &Point| {
        let span = spans.iter().find(|span| span.from < point.events && point.events <= span.to);
        let Some(span) = span else { return format!("after {} calls", grouped(point.events as u64)) };
        let batch = span.micro_batch.map_or_else(String::new, |number| format!(", micro-batch {number}"));
        format!("{}{batch}, after {} calls", span.phase, grouped(point.events as u64))
    };
    let row = |name: &str, class: &str, of: &dyn Fn(&Point) -> u64| HoverRow {
        name: name.to_owned(),
        class: class.to_owned(),
        unit: Unit::Bytes,
        values: thin.points.iter().map(|point| Some(of(point) as f64)).collect(),
    };
    let mut rows: Vec<HoverRow> = shown(&thin.points)
        .map(|(category, _)| row(&words(category), category.name(), &|point| point.bytes.get(category)))
        .collect();
    // From top to bottom, as in the drawing.
    rows.reverse();
    rows.push(row("allocated", "sum", &|point| point.bytes.total()));
    rows.push(row("reserved from the device", "held-key", &|point| point.reserved));
    Hover {
        edges: [LEFT, RIGHT, TOP, BOTTOM],
        width: WIDTH,
        x: thin.points.iter().map(|point| frame.x(point.events as f64)).collect(),
        heads: thin.points.iter().map(head).collect(),
        rows,
        zeros: false,
    }
}
