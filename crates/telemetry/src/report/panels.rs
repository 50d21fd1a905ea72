//! Panels of the page, one for each group of equal ranks.

use std::fmt::Write;

use super::kinds::{kinds, rank_numbers};
use super::section::Section;
use super::{RankMemory, live, stacked, states};

/// Maximum number of groups of ranks that are drawn.
const DRAWN: usize = 16;

/// Returns the section of memory over a step, with a panel for each group of equal ranks.
pub(super) fn memory_section(ranks: &[RankMemory]) -> Option<Section> {
    let note = "Allocated bytes by category, from left to right in the order of the allocator's calls. The \
                line above them is the memory reserved from the device.";
    let draw = |rank: &RankMemory| rank.trace().map(|trace| stacked::drawing(rank, trace));
    let body = tabs(ranks, "memory", draw)?;
    let body = format!("<p class=\"soft\">{note}</p>\n{body}");
    Some(Section { id: "memory", title: "Memory over a step", body })
}

/// Returns the section of a step's memory states, with a panel for each group of equal ranks.
pub(super) fn states_section(ranks: &[RankMemory]) -> Option<Section> {
    let note = "The phases of a step as states of its memory: the bytes allocated at each transition, the \
                peak in each phase, and there the bytes by category.";
    let body = tabs(ranks, "states", |rank| rank.trace().and_then(states::drawing))?;
    let body = format!("<p class=\"soft\">{note}</p>\n{body}");
    Some(Section { id: "states", title: "States of a step", body })
}

/// Returns the section of blocks alive at the peak, with a panel for each group of equal ranks.
pub(super) fn peak_section(ranks: &[RankMemory]) -> Option<Section> {
    let note = "Blocks alive when the step needs the most memory, by category, module and operator; layers \
                are added up.";
    let body = tabs(ranks, "peak", |rank| rank.trace().map(live::drawing))?;
    let body = format!("<p class=\"soft\">{note}</p>\n{body}");
    Some(Section { id: "peak", title: "At the peak", body })
}

/// Draws a panel for each group of equal ranks, with buttons if there are several groups.
fn tabs(ranks: &[RankMemory], name: &str, draw: impl Fn(&RankMemory) -> Option<String>) -> Option<String> {
    let kinds = kinds(ranks.iter().filter(|rank| rank.trace().is_some()), RankMemory::looks_like);
    let panels: Vec<_> =
        kinds.iter().take(DRAWN).filter_map(|(rank, members)| Some((members, draw(rank)?))).collect();
    if panels.is_empty() {
        return None;
    }
    let mut body = "<div class=\"tabs\">\n".to_owned();
    for (index, (members, drawing)) in panels.iter().enumerate() {
        let plural = if members.len() == 1 { "rank" } else { "ranks" };
        let label = format!("{plural} {}", rank_numbers(members));
        let checked = if index == 0 { " checked" } else { "" };
        let hidden = if panels.len() == 1 { " hidden" } else { "" };
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            body,
            "<input type=\"radio\" name=\"{name}\" id=\"{name}-{index}\"{checked}{hidden}>\
             <label for=\"{name}-{index}\"{hidden}>{label}</label>\n\
             <div class=\"panel\" aria-label=\"{label}\">\n{drawing}</div>"
        );
    }
    body += "</div>\n";
    if kinds.len() > DRAWN {
        let _ = writeln!(
            body,
            "<p class=\"soft\">{} more kinds of ranks are not shown.</p>",
            kinds.len() - DRAWN
        );
    }
    Some(body)
}
