//! The table of phase times by rank.

use super::PhaseRow;
use super::section::Section;
use crate::svg::escape;
use crate::units::milliseconds;

/// Maximum number of ranks shown.
const RANKS: usize = 64;

/// Returns the table of each phase's median time, one row per rank.
pub(super) fn section(rows: &[PhaseRow]) -> Option<Section> {
    let first = rows.first()?;
    let names = first.microseconds.iter().map(|(name, _)| escape(name));
    let header: String = names.map(|name| format!("<th class=\"number\">{name}</th>")).collect();
    let row = |PhaseRow { rank, microseconds }: &PhaseRow| {
        let times = microseconds.iter().map(|(_, time)| milliseconds(*time));
        let cells: String = times.map(|time| format!("<td class=\"number\">{time}</td>")).collect();
        format!("<tr><th scope=\"row\">{rank}</th>{cells}</tr>\n")
    };
    let more = match rows.len().saturating_sub(RANKS) {
        0 => String::new(),
        more => format!(" {more} more ranks are not shown."),
    };
    let rows: String = rows.iter().take(RANKS).map(row).collect();
    let body = format!(
        "<p class=\"soft\">Median milliseconds of a step's phases on each rank's compute stream.{more}</p>\n\
         <div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th>rank</th>{header}</tr></thead>\n<tbody>\n\
         {rows}</tbody>\n</table></div>\n"
    );
    Some(Section { id: "phases", title: "Time by phase", body })
}
