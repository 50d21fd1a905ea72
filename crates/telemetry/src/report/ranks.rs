//! The table of ranks.

use std::fmt::Write;

use super::RankMemory;
use super::kinds::{kinds, rank_numbers};
use super::section::Section;
use crate::svg::escape;
use crate::units::{bytes, grouped};

const COLUMNS: [&str; 4] = ["allocated", "reserved", "peak allocated", "peak reserved"];

/// Returns a table with four memory figures per rank; ranks with equal figures share a row.
pub(super) fn section(ranks: &[RankMemory]) -> Option<Section> {
    if ranks.is_empty() {
        return None;
    }
    let mut body =
        "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th>rank</th><th>device</th>".to_owned();
    for name in COLUMNS {
        // Writing to a string cannot fail, here and below.
        let _ = write!(body, "<th class=\"number\">{name}</th>");
    }
    body += "</tr></thead>\n<tbody>\n";
    let alike =
        |a: &RankMemory, b: &RankMemory| (a.figures, a.device.as_str()) == (b.figures, b.device.as_str());
    for (first, members) in kinds(ranks.iter(), alike) {
        let numbers = rank_numbers(&members);
        let device = escape(&first.device);
        let _ = write!(body, "<tr><th scope=\"row\">{numbers}</th><td>{device}</td>");
        for figure in first.figures {
            let short = bytes(figure);
            let exact = grouped(figure);
            let _ = write!(body, "<td class=\"number\">{exact}<br><span class=\"soft\">{short}</span></td>");
        }
        body += "</tr>\n";
    }
    body += "</tbody>\n</table></div>\n";
    Some(Section { id: "ranks", title: "Bytes by rank", body })
}
