//! The table of ranks.

use std::fmt::Write;

use super::RankMemory;
use super::page::Section;
use crate::svg::escape;
use crate::units::{bytes, grouped};

const COLUMNS: [&str; 4] = ["allocated", "reserved", "peak allocated", "peak reserved"];

/// Every rank's four figures; equal ones share a row.
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
    let mut kinds: Vec<(&RankMemory, Vec<usize>)> = Vec::new();
    for rank in ranks {
        let alike = |kind: &RankMemory| (kind.figures, &kind.device) == (rank.figures, &rank.device);
        match kinds.iter_mut().find(|(kind, _)| alike(kind)) {
            Some((_, members)) => members.extend(&rank.ranks),
            None => kinds.push((rank, rank.ranks.clone())),
        }
    }
    for (first, who) in kinds {
        let _ = write!(body, "<tr><th scope=\"row\">{}</th><td>{}</td>", named(&who), escape(&first.device));
        for figure in first.figures {
            let (short, exact) = (bytes(figure), grouped(figure));
            let _ = write!(body, "<td class=\"number\">{exact}<br><span class=\"soft\">{short}</span></td>");
        }
        body += "</tr>\n";
    }
    body += "</tbody>\n</table></div>\n";
    Some(Section { id: "ranks", title: "Bytes by rank", body })
}

/// `3`, or `0–3, 8`.
pub(super) fn named(ranks: &[usize]) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let name = |run: &[usize]| match run {
        [] => String::new(),
        [only] => only.to_string(),
        [first, .., last] => format!("{first}–{last}"),
    };
    sorted.chunk_by(|a, b| a + 1 == *b).map(name).collect::<Vec<_>>().join(", ")
}
