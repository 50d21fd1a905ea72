//! A state diagram of a step's memory: a box for each phase, an arrow for each transition.

use std::fmt::Write;

use memory::CategoryBytes;

use crate::step_trace::{PhaseState, Point, StepStates, StepTrace, Transition, words};
use crate::svg::escape;
use crate::units::{bytes, grouped};

const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 10.0;
const TOP: f64 = 14.0;
/// Height of a box, in pixels.
const HEIGHT: f64 = 92.0;
/// Maximum width of a box, in pixels.
const WIDEST: f64 = 168.0;
/// Pixels between boxes, in which the bytes at a transition are written.
const GAP: f64 = 64.0;
/// Pixels between the lines of transitions below the boxes.
const LEVEL: f64 = 30.0;

/// Horizontal positions of the boxes. The first box is the time between steps; phases follow.
struct Layout {
    count: usize,
    width: f64,
}

impl Layout {
    fn for_states(states: &StepStates) -> Self {
        let count = states.phases.len() + 1;
        let free = WIDTH - 2.0 * MARGIN - GAP * (count - 1) as f64;
        Layout { count, width: (free / count as f64).min(WIDEST) }
    }

    /// Returns the x coordinate of the box at `index`, in pixels.
    fn left(&self, index: usize) -> f64 {
        let all = self.count as f64 * (self.width + GAP) - GAP;
        (WIDTH - all) / 2.0 + index as f64 * (self.width + GAP)
    }
}

/// Draws the memory states of the traced step; `None` if it has no phases.
pub(super) fn drawing(trace: &StepTrace) -> Option<String> {
    let states = trace.states();
    if states.phases.is_empty() {
        return None;
    }
    let layout = Layout::for_states(&states);
    let box_of = |state: Option<usize>| state.map_or(0, |phase| phase + 1);
    let ends = |transition: &Transition| (box_of(transition.from), box_of(transition.to));
    let (straight, mut below): (Vec<&Transition>, Vec<&Transition>) =
        states.transitions.iter().partition(|transition| {
            let (from, to) = ends(transition);
            to == from + 1
        });
    // Short transitions are drawn above long ones, so that few lines cross.
    below.sort_by_key(|transition| {
        let (from, to) = ends(transition);
        from.abs_diff(to)
    });
    let height = TOP + HEIGHT + LEVEL * below.len() as f64 + 26.0;
    // Writing to a string cannot fail, here and below.
    let mut out = "<figure class=\"card\">".to_owned();
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"The states of {}; the table below \
         has the same figures\">",
        trace.part.of_step(trace.step)
    );
    for transition in straight {
        arrow(&mut out, &layout, ends(transition).0, transition);
    }
    for (level, transition) in below.into_iter().enumerate() {
        bow(&mut out, &layout, ends(transition), level, transition);
    }
    boxes(&mut out, &layout, &states);
    out += "</svg></figure>\n";
    table(&mut out, &states);
    Some(out)
}

/// Formats the bytes at a transition, and the number of times if it occurs repeatedly.
fn label(transition: &Transition) -> String {
    let Transition { times, least, most, .. } = *transition;
    let range = if least == most { bytes(most) } else { format!("{} – {}", bytes(least), bytes(most)) };
    if times == 1 { range } else { format!("{range}, {times} ×") }
}

/// Draws a transition to the next box.
fn arrow(out: &mut String, layout: &Layout, from: usize, transition: &Transition) {
    let start = layout.left(from) + layout.width;
    let end = layout.left(from + 1);
    let y = TOP + HEIGHT / 2.0;
    let _ = write!(
        out,
        "<g><title>{}</title><path class=\"way\" d=\"M{start:.1} {y:.1}H{:.1}\"/>\
         <path class=\"tip\" d=\"M{end:.1} {y:.1}l-7 -4v8z\"/>",
        exact(transition),
        end - 6.0,
    );
    let middle = f64::midpoint(start, end);
    let Transition { times, least, most, .. } = *transition;
    let mut lines = vec![(y - 8.0, bytes(least))];
    if most > least {
        lines = vec![(y - 22.0, format!("{} –", bytes(least))), (y - 8.0, bytes(most))];
    }
    if times > 1 {
        lines.push((y + 17.0, format!("{times} ×")));
    }
    for (y, text) in lines {
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{middle:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{text}</text>"
        );
    }
    *out += "</g>";
}

/// Draws a transition to any other box, below the boxes.
fn bow(out: &mut String, layout: &Layout, (from, to): (usize, usize), level: usize, transition: &Transition) {
    let bottom = TOP + HEIGHT;
    let y = bottom + 20.0 + LEVEL * level as f64;
    // Transitions leave a box in its right half and enter a box in its left half, each at its own point.
    let aside = (10.0 + 9.0 * level as f64).min(layout.width / 2.0 - 6.0);
    let center = |index: usize| layout.left(index) + layout.width / 2.0;
    let start = center(from) + aside;
    let end = center(to) - aside;
    let _ = write!(
        out,
        "<g><title>{}</title><path class=\"way\" d=\"M{start:.1} {bottom:.1}V{y:.1}H{end:.1}V{:.1}\"/>\
         <path class=\"tip\" d=\"M{end:.1} {bottom:.1}l-4 7h8z\"/>\
         <text class=\"tick way-name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>",
        exact(transition),
        bottom + 6.0,
        f64::midpoint(start, end),
        y + 4.0,
        label(transition)
    );
}

/// Formats a transition's exact bytes and number of occurrences.
fn exact(transition: &Transition) -> String {
    let Transition { times, least, most, .. } = *transition;
    let range =
        if least == most { grouped(most) } else { format!("{} to {}", grouped(least), grouped(most)) };
    format!("{range} bytes, {times} ×")
}

fn boxes(out: &mut String, layout: &Layout, states: &StepStates) {
    let most = states.phases.iter().map(|state| state.peak.bytes.total()).max().unwrap_or(0);
    let between = [format!("before {}", bytes(states.before)), format!("after {}", bytes(states.after))];
    state(out, layout, 0, ("between steps", between));
    for (index, visited) in states.phases.iter().enumerate() {
        let PhaseState { phase, visits, peak, .. } = visited;
        let visits = if *visits == 1 { "once".to_owned() } else { format!("{visits} times") };
        state(out, layout, index + 1, (phase, [format!("peak {}", bytes(peak.bytes.total())), visits]));
        bar(out, layout, index + 1, peak, most);
    }
}

/// Draws a box: a phase's name and two lines of text.
fn state(out: &mut String, layout: &Layout, index: usize, (name, lines): (&str, [String; 2])) {
    let x = layout.left(index);
    let width = layout.width;
    let center = x + width / 2.0;
    let _ = write!(
        out,
        "<rect class=\"state\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{HEIGHT}\" rx=\"10\"/>\
         <text class=\"state-name\" x=\"{center:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        TOP + 22.0,
        escape(name)
    );
    for (line, y) in lines.iter().zip([42.0, 60.0]) {
        let y = TOP + y;
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{center:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{line}</text>"
        );
    }
}

/// Draws the bytes at a phase's peak by category, scaled to the step's peak.
fn bar(out: &mut String, layout: &Layout, index: usize, peak: &Point, most: u64) {
    let scale = (layout.width - 20.0) / most.max(1) as f64;
    let mut x = layout.left(index) + 10.0;
    for (category, bytes) in peak.bytes.iter().filter(|(_, bytes)| *bytes > 0) {
        let width = bytes as f64 * scale;
        let _ = write!(
            out,
            "<rect class=\"part {}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"12\">\
             <title>{}: {} bytes</title></rect>",
            category.name(),
            TOP + 70.0,
            words(category),
            grouped(bytes)
        );
        x += width;
    }
}

/// Writes the values of all phases as a table.
fn table(out: &mut String, states: &StepStates) {
    let shown = |sums: &CategoryBytes| -> Vec<String> {
        let parts = sums.iter().filter(|(_, category_bytes)| *category_bytes > 0);
        parts
            .map(|(category, category_bytes)| format!("{} {}", words(category), bytes(category_bytes)))
            .collect()
    };
    *out += "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th>phase</th><th class=\"number\">\
             entered</th><th class=\"number\">bytes before</th><th class=\"number\">peak</th>\
             <th class=\"number\">bytes after</th><th>at the peak</th></tr></thead>\n<tbody>\n";
    for PhaseState { phase, visits, before, peak, after } in &states.phases {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{visits}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
            escape(phase),
            grouped(*before),
            grouped(peak.bytes.total()),
            grouped(*after),
            shown(&peak.bytes).join(", ")
        );
    }
    *out += "</tbody>\n</table></div>\n";
}
