//! The drawing's two panels: bytes over time, and blocks at their addresses over time.

use std::fmt::Write;

use memory::Category;

use super::layout::{Layout, lay_out};
use super::palette::colour;
use crate::memory_views::lifetimes::{BlockLife, Lifetimes, Moment};
use crate::step_trace::words;
use crate::svg::{byte_ticks, escape};
use crate::units::{axis_bytes, bytes};

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 84.0;
const PLOT: f64 = WIDTH - LEFT - 8.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 26.0;
/// Maximum number of drawn blocks; the largest by bytes × lifetime are drawn.
const BLOCKS: usize = 5000;
/// Maximum number of columns of the drawing.
const COLUMNS: usize = 1100;

struct Frame {
    height: f64,
    /// First event shown.
    begin: usize,
    /// Last event shown.
    end: usize,
    /// Bytes at the top.
    most: f64,
}

impl Frame {
    /// Returns the x coordinate of an event, in pixels.
    fn x(&self, time: usize) -> f64 {
        LEFT + PLOT * time.saturating_sub(self.begin) as f64 / (self.end - self.begin).max(1) as f64
    }

    /// Returns the y coordinate of a number of bytes, in pixels.
    fn y(&self, bytes: u64) -> f64 {
        TOP + self.height * (1.0 - bytes as f64 / self.most)
    }

    /// Starts the drawing: draws the axes and marks the starts of steps.
    fn open(&self, page: &mut String, lives: &Lifetimes, label: &str) {
        let whole = self.height + TOP + BOTTOM;
        let _ = writeln!(page, "<svg viewBox=\"0 0 {WIDTH} {whole}\" role=\"img\" aria-label=\"{label}\">");
        for tick in byte_ticks(self.most as u64) {
            let y = self.y(tick);
            let right = LEFT + PLOT;
            let _ = write!(
                page,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
            let x = LEFT - 8.0;
            let y = y + 4.0;
            let _ = writeln!(page, "<text class=\"tick\" x=\"{x}\" y=\"{y:.1}\">{}</text>", axis_bytes(tick));
        }
        let below = TOP + self.height;
        let mut last = f64::NEG_INFINITY;
        for (step, begin) in lives.steps.iter().filter(|(_, begin)| *begin >= self.begin) {
            let x = self.x(*begin);
            if x - last < 76.0 || x > WIDTH - 30.0 {
                continue;
            }
            last = x;
            let _ = write!(
                page,
                "<line class=\"step\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{below:.1}\"/>"
            );
            let y = below + 16.0;
            let _ = writeln!(page, "<text class=\"under\" x=\"{x:.1}\" y=\"{y:.1}\">step {step}</text>");
        }
        if lives.steps.is_empty() {
            let x = LEFT + PLOT;
            let y = below + 16.0;
            let _ = writeln!(page, "<text class=\"tick\" x=\"{x}\" y=\"{y:.1}\">{} events</text>", lives.end);
        }
    }
}

/// Divides a history into columns. Returns each column's event with the most bytes in use.
fn columns(curves: &[Moment]) -> Vec<usize> {
    let per = curves.len().div_ceil(COLUMNS).max(1);
    let used = |time: &usize| curves[*time].used();
    (0..curves.len())
        .step_by(per)
        .filter_map(|from| (from..(from + per).min(curves.len())).max_by_key(used))
        .collect()
}

/// Draws the bytes in use as stacked areas by category, under the line of the reserved bytes.
pub(super) fn bytes_over_time(page: &mut String, lives: &Lifetimes, curves: &[Moment], peak: usize) {
    let most = curves.iter().map(|moment| moment.reserved.max(moment.used())).max().unwrap_or(0).max(1);
    let frame = Frame { height: 240.0, begin: 0, end: lives.end, most: most as f64 * 1.04 };
    *page += "<h2>Bytes in use, by category</h2>\n";
    frame.open(page, lives, "bytes in use over time");
    let columns = columns(curves);
    // Steps instead of slopes, because bytes change at events and not between them.
    let outline = |value: &dyn Fn(usize) -> u64| {
        let mut points = String::new();
        for (index, time) in columns.iter().enumerate() {
            let next = columns.get(index + 1).copied().unwrap_or(lives.end);
            let y = frame.y(value(*time));
            let _ = write!(points, "{:.1},{y:.1} {:.1},{y:.1} ", frame.x(*time), frame.x(next));
        }
        points
    };
    let floor = frame.y(0);
    let start = columns.first().map_or(LEFT, |time| frame.x(*time));
    let right = LEFT + PLOT;
    let close = format!("{right:.1},{floor:.1} {start:.1},{floor:.1}");
    let held = outline(&|time| curves[time].reserved);
    let _ = writeln!(page, "<polygon class=\"held\" points=\"{held}{close}\"/>");
    // From the top down: each area reaches the bottom, and the areas below are painted over it.
    for category in Category::ALL.into_iter().rev() {
        if curves.iter().all(|moment| moment.by_category[category.index()] == 0) {
            continue;
        }
        let area = outline(&|time| curves[time].by_category[..=category.index()].iter().sum());
        let colour = colour(category);
        let name = words(category);
        let _ = writeln!(
            page,
            "<polygon fill=\"{colour}\" points=\"{area}{close}\"><title>{name}</title></polygon>"
        );
    }
    let _ = writeln!(page, "<polyline class=\"heldline\" points=\"{held}\"/>");
    mark_peak(page, &frame, curves, peak);
    *page += "</svg>\n";
}

fn mark_peak(page: &mut String, frame: &Frame, curves: &[Moment], peak: usize) {
    let Some(total) = curves.get(peak).map(Moment::used) else { return };
    let x = frame.x(peak);
    let y = frame.y(total);
    let (anchor, dx) = if x > WIDTH * 0.75 { ("end", -8.0) } else { ("start", 8.0) };
    let _ = writeln!(
        page,
        "<circle class=\"peak\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>\
         <text class=\"peak\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">peak {}</text>",
        x + dx,
        (y + 14.0).min(TOP + frame.height - 4.0),
        bytes(total)
    );
}

/// Returns the first event that the panel of blocks shows: 0, or the start of the first step from which on
/// at most [`BLOCKS`] blocks have to be drawn.
fn window(lives: &Lifetimes) -> usize {
    let mut ends: Vec<usize> = lives.blocks.iter().map(|b| b.end).collect();
    ends.sort_unstable();
    let alive_from = |begin: usize| ends.len() - ends.partition_point(|end| *end <= begin);
    if alive_from(0) <= BLOCKS {
        return 0;
    }
    let mut steps = lives.steps.iter().map(|(_, begin)| *begin);
    steps.clone().find(|begin| alive_from(*begin) <= BLOCKS).or_else(|| steps.next_back()).unwrap_or(0)
}

/// Draws every block as a rectangle, from its allocation to its return, at its position in its segment.
pub(super) fn blocks_over_time(page: &mut String, lives: &Lifetimes) {
    let Layout { segments, blocks, height } = lay_out(lives);
    let most = height.max(1);
    let begin = window(lives);
    let frame = Frame { height: 460.0, begin, end: lives.end, most: most as f64 * 1.01 };
    *page += "<h2>Blocks in their segments</h2>\n<p class=\"note\">Each grey band is a segment, from when it \
              was taken from the device to when it was returned; each coloured rectangle is a block in it. \
              Grey that stays between colours is fragmented memory.</p>\n";
    frame.open(page, lives, "blocks in their segments over time");
    for (segment, bottom) in segments.into_iter().filter(|(segment, _)| segment.end > begin) {
        let x = frame.x(segment.begin);
        let y = frame.y(bottom + segment.size);
        let width = frame.x(segment.end) - x;
        let height = frame.y(bottom) - y;
        let _ = writeln!(
            page,
            "<rect class=\"segment\" x=\"{x:.1}\" y=\"{y:.2}\" width=\"{width:.1}\" height=\"{height:.2}\">\
             <title>segment of {} at {:#x}</title></rect>",
            bytes(segment.size),
            segment.address
        );
    }
    let mut drawn: Vec<(BlockLife, u64)> = blocks.into_iter().filter(|(life, _)| life.end > begin).collect();
    let area = |life: &BlockLife| u128::from(life.size) * (life.end - life.begin).max(1) as u128;
    drawn.sort_by_key(|(life, _)| std::cmp::Reverse(area(life)));
    let left_out = drawn.split_off(drawn.len().min(BLOCKS));
    for (life, bottom) in &drawn {
        draw_block(page, &frame, life, *bottom);
    }
    *page += "</svg>\n";
    if let Some((step, _)) = lives.steps.iter().find(|(_, first)| begin > 0 && *first == begin) {
        let _ = writeln!(page, "<p class=\"note\">Shown from step {step} on.</p>");
    }
    if !left_out.is_empty() {
        let _ = writeln!(
            page,
            "<p class=\"note\">The {} blocks with the smallest product of bytes and lifetime are not \
             drawn.</p>",
            left_out.len()
        );
    }
}

fn draw_block(page: &mut String, frame: &Frame, life: &BlockLife, bottom: u64) {
    let x = frame.x(life.begin);
    let y = frame.y(bottom + life.size);
    let width = (frame.x(life.end) - x).max(0.5);
    let height = (frame.y(bottom) - y).max(0.4);
    let operator =
        if life.tag.operator.is_empty() { String::new() } else { format!(", {}", life.tag.operator) };
    let _ = writeln!(
        page,
        "<rect x=\"{x:.1}\" y=\"{y:.2}\" width=\"{width:.1}\" height=\"{height:.2}\" fill=\"{}\">\
         <title>{} {}{}, step {}, events {} to {}</title></rect>",
        colour(life.tag.category),
        bytes(life.size),
        words(life.tag.category),
        escape(&operator),
        life.tag.step,
        life.begin,
        life.end
    );
}
