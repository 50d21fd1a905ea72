//! Memory over a step: stacked by category, one picture for each kind of rank.

use std::fmt::Write;

use memory::Category;

use super::chart::{Frame, Hover, Told, Unit, steps};
use super::page::Section;
use super::ranks::named;
use super::{RankMemory, live};
use crate::step_trace::{Curve, Peak, Point, Span, StepTrace, words};
use crate::svg::{axis_bytes, escape, ticks};
use crate::units::{bytes, grouped};

const WIDTH: f64 = 1120.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - 18.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = HEIGHT - 58.0;
/// Columns of the picture.
const COLUMNS: usize = 900;
/// Kinds of ranks that are drawn.
const DRAWN: usize = 16;

/// The picture of every kind of rank; those that look alike share one.
pub(super) fn section(ranks: &[RankMemory]) -> Option<Section> {
    let note = "Allocated bytes by what they are for, from left to right in the order of the allocator's calls. The line above \
                is what is held from the device.";
    let body = tabs(ranks, "memory", &|rank| rank.trace().map(|trace| drawing(rank, trace)))?;
    let body = format!("<p class=\"soft\">{note}</p>\n{body}");
    Some(Section { id: "memory", title: "Memory over a step", body })
}

/// What is alive at the peak, of every kind of rank.
pub(super) fn peak_section(ranks: &[RankMemory]) -> Option<Section> {
    let note =
        "What is alive where the step needs most, by category, module and operator; layers are added up.";
    let body = tabs(ranks, "peak", &|rank| rank.trace().map(live::drawing))?;
    let body = format!("<p class=\"soft\">{note}</p>\n{body}");
    Some(Section { id: "peak", title: "At the peak", body })
}

/// A panel for each kind of rank, and buttons between them where there are several.
fn tabs(ranks: &[RankMemory], name: &str, draw: &dyn Fn(&RankMemory) -> Option<String>) -> Option<String> {
    let mut kinds: Vec<(&RankMemory, Vec<usize>)> = Vec::new();
    for rank in ranks.iter().filter(|rank| rank.trace().is_some()) {
        match kinds.iter_mut().find(|(kind, _)| kind.looks_like(rank)) {
            Some((_, members)) => members.extend(&rank.ranks),
            None => kinds.push((rank, rank.ranks.clone())),
        }
    }
    let panels: Vec<_> =
        kinds.iter().take(DRAWN).filter_map(|(rank, who)| Some((who, draw(rank)?))).collect();
    if panels.is_empty() {
        return None;
    }
    let mut body = "<div class=\"tabs\">\n".to_owned();
    for (place, (who, drawing)) in panels.iter().enumerate() {
        let several = if who.len() == 1 { "rank" } else { "ranks" };
        let label = format!("{several} {}", named(who));
        let checked = if place == 0 { " checked" } else { "" };
        let hidden = if panels.len() == 1 { " hidden" } else { "" };
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            body,
            "<input type=\"radio\" name=\"{name}\" id=\"{name}-{place}\"{checked}{hidden}><label \
             for=\"{name}-{place}\"{hidden}>{label}</label>\n<div class=\"panel\" aria-label=\"{label}\">\n{drawing}</div>"
        );
    }
    body += "</div>\n";
    if kinds.len() > DRAWN {
        let _ = writeln!(body, "<p class=\"soft\">and {} more kinds of ranks.</p>", kinds.len() - DRAWN);
    }
    Some(body)
}

fn drawing(rank: &RankMemory, trace: &StepTrace) -> String {
    let (full, peak) = (trace.curve(), trace.peak());
    let thin = full.thinned(COLUMNS);
    let plan = rank.other_plan().map(StepTrace::curve);
    let most = full.points.iter().map(|point| point.reserved.max(point.bytes.total())).max().unwrap_or(0);
    let planned = plan.iter().flat_map(|plan| &plan.points).map(|point| point.bytes.total()).max();
    let most = most.max(planned.unwrap_or(0)).max(1);
    // A limit that is far off would leave nothing to see below it.
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
    axis(&mut out, frame, most);
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
            "<path class=\"limit\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text class=\"tick\" x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">limit {}</text>",
            RIGHT - 6.0,
            y - 5.0,
            bytes(limit)
        );
    }
    summit(&mut out, frame, &peak);
    let hover = hover(frame, &thin, &full.spans).element();
    let _ = writeln!(out, "<path class=\"cross\" d=\"M0 {TOP}V{BOTTOM}\"/></svg>{hover}</figure>");
    out
}

/// Categories that occur.
fn shown(points: &[Point]) -> impl Iterator<Item = (Category, u64)> + '_ {
    let most = |category: Category| points.iter().map(|point| point.bytes.get(category)).max().unwrap_or(0);
    Category::ALL.into_iter().map(move |category| (category, most(category))).filter(|(_, most)| *most > 0)
}

fn legend(full: &Curve, rank: &RankMemory) -> String {
    let mut out = "<p class=\"legend\">".to_owned();
    for (category, most) in shown(&full.points) {
        let (class, name, most) = (category.name(), words(category), bytes(most));
        let _ = write!(out, "<span><i class=\"{class}\"></i>{name} <b>≤ {most}</b></span>");
    }
    let held = bytes(full.peak_reserved());
    let _ = write!(out, "<span><i class=\"held-key\"></i>held from the device <b>≤ {held}</b></span>");
    match (&rank.measured, &rank.planned) {
        (Some(_), Some(_)) if rank.other_plan().is_none() => {
            out += "<span class=\"same\">✓ measured and planned are the same, call by call</span>";
        }
        (Some(_), Some(_)) => out += "<span><i class=\"plan-key\"></i>planned, where it differs</span>",
        (None, Some(_)) => out += "<span class=\"same\">planned</span>",
        (Some(_), None) => out += "<span class=\"same\">measured, without a plan</span>",
        (None, None) => {}
    }
    out += "</p>\n";
    out
}

fn axis(out: &mut String, frame: Frame, most: u64) {
    for tick in ticks(most) {
        let (y, text) = (frame.y(tick as f64), axis_bytes(tick));
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text class=\"tick\" x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            y + 4.0
        );
    }
}

/// A strip below the plot: phases, and the micro-batches where there are several.
fn phases(out: &mut String, frame: Frame, spans: &[Span]) {
    const PHASES: [&str; 5] = ["inputs", "forward", "backward", "reduce", "update"];
    let batches = spans.iter().filter_map(|span| span.micro_batch).max().unwrap_or(0);
    for span in spans {
        let (from, to) = (frame.x(span.from as f64), frame.x(span.to as f64));
        let width = to - from;
        let class = PHASES.iter().position(|name| *name == span.phase).map_or(9, |place| place);
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
        let (from, to) = (frame.x(first.from as f64), frame.x(last.to as f64));
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

/// An area for each category, on top of those before it.
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
        // Back along the floor: a step there turns first and then goes.
        let mut back = String::new();
        for (place, (x, y)) in floor.iter().enumerate().rev() {
            let _ = match place + 1 == floor.len() {
                true => write!(back, "V{y:.1}"),
                false => write!(back, "V{y:.1}H{x:.1}"),
            };
        }
        let _ = write!(out, "<path class=\"area {}\" d=\"{roof}{back}Z\"/>", category.name());
    }
}

fn outline(out: &mut String, frame: Frame, class: &str, points: impl Iterator<Item = (usize, u64)>) {
    let at = |(events, height): (usize, u64)| (frame.x(events as f64), frame.y(height as f64));
    let path = steps(&points.map(at).collect::<Vec<_>>());
    let _ = write!(out, "<path class=\"{class}\" d=\"{path}\"/>");
}

/// Where the peak stands.
fn summit(out: &mut String, frame: Frame, peak: &Peak) {
    let (x, y) = (frame.x(peak.events as f64), frame.y(peak.bytes as f64));
    let module = peak.owner.as_ref().map_or("", |owner| owner.module.as_str());
    let place = [peak.phase.as_str(), module].into_iter().filter(|part| !part.is_empty());
    let text = format!("{} · {}", bytes(peak.bytes), place.collect::<Vec<_>>().join(" · "));
    let half = 3.6 * text.chars().count() as f64;
    let at = x.clamp(LEFT + half, RIGHT - half);
    let _ = write!(
        out,
        "<circle class=\"summit\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>the peak: {} bytes</title></circle><text \
         class=\"summit-name\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
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
    let told = |name: &str, class: &str, of: &dyn Fn(&Point) -> u64| Told {
        name: name.to_owned(),
        class: class.to_owned(),
        unit: Unit::Bytes,
        values: thin.points.iter().map(|point| Some(of(point) as f64)).collect(),
    };
    let mut all: Vec<Told> = shown(&thin.points)
        .map(|(category, _)| told(&words(category), category.name(), &|point| point.bytes.get(category)))
        .collect();
    all.reverse();
    all.push(told("allocated", "sum", &|point| point.bytes.total()));
    all.push(told("held from the device", "held-key", &|point| point.reserved));
    Hover {
        edges: [LEFT, RIGHT, TOP, BOTTOM],
        width: WIDTH,
        x: thin.points.iter().map(|point| frame.x(point.events as f64)).collect(),
        heads: thin.points.iter().map(head).collect(),
        told: all,
        zeros: false,
    }
}
