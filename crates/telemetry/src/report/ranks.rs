//! The table of ranks.

use std::fmt::Write;

use super::RankMemory;
use super::page::Section;
use crate::svg::escape;
use crate::units::{bytes, grouped};

const COLUMNS: [&str; 4] = ["allocated", "reserved", "peak allocated", "peak reserved"];

/// Every rank's four figures; equal ones that follow each other share a row.
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
    for group in ranks.chunk_by(|a, b| (a.figures, &a.place) == (b.figures, &b.place)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let who = named(first.rank, last.rank);
        let _ = write!(body, "<tr><th scope=\"row\">{who}</th><td>{}</td>", escape(&first.place));
        for figure in first.figures {
            let (short, exact) = (bytes(figure), grouped(figure));
            let _ = write!(body, "<td class=\"number\">{exact}<br><span class=\"soft\">{short}</span></td>");
        }
        body += "</tr>\n";
    }
    body += "</tbody>\n</table></div>\n";
    Some(Section { id: "ranks", title: "Bytes by rank", body })
}

/// `3`, or `3–5`.
pub(super) fn named(first: usize, last: usize) -> String {
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}
