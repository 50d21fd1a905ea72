//! The table of sessions.

use super::SessionRow;
use super::section::Section;
use crate::svg::escape;

const COLUMNS: [&str; 8] =
    ["started (UTC)", "ended as", "steps", "grid", "throughput", "peak allocated", "wall time", "host"];

/// Returns a table of the processes that trained the run, in order.
pub(super) fn section(sessions: &[SessionRow]) -> Option<Section> {
    if sessions.is_empty() {
        return None;
    }
    let header: String = COLUMNS.iter().map(|name| format!("<th>{name}</th>")).collect();
    let mut body =
        format!("<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n");
    for SessionRow { started, cells, notes } in sessions {
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        body += &format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escape(started));
        for note in notes {
            let width = COLUMNS.len();
            body += &format!("<tr><td class=\"soft\" colspan=\"{width}\">{}</td></tr>\n", escape(note));
        }
    }
    body += "</tbody>\n</table></div>\n";
    Some(Section { id: "sessions", title: "Sessions", body })
}
