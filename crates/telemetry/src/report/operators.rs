//! The tables of operators and modules.

use super::section::Section;
use crate::operators::{By, OperatorProfile, Sort};
use crate::svg::escape;
use crate::units::grouped;

/// Maximum number of rows of each table.
const ROWS: usize = 30;

/// Returns a profile's tables by operator and by module.
pub(super) fn section(profile: Option<&OperatorProfile>) -> Option<Section> {
    let profile = profile?;
    let OperatorProfile { device, ranks, steps, step_milliseconds, .. } = profile;
    let added =
        if *ranks == 1 { String::new() } else { format!(", {} ranks added up", grouped(*ranks as u64)) };
    let device = escape(device);
    let mut body = format!(
        "<p class=\"soft\">Measured by <code>plimsoll profile</code> on {device}: mean of {steps} steps{added}. \
         Without measurement a step takes {step_milliseconds:.3} ms. Rows in parentheses are phases outside \
         operators.</p>\n"
    );
    for by in [By::Operator, By::Module] {
        let total = profile.total();
        let rows = profile.rows(by, Sort::Time);
        let mut shown: Vec<_> = rows.iter().take(ROWS).copied().collect();
        shown.push(&total);
        let (header, cells) = profile.cells(by, &shown);
        let header: String = header.into_iter().enumerate().map(|(n, name)| cell("th", n, name)).collect();
        let row = |cells: Vec<String>| {
            let cells: String =
                cells.iter().enumerate().map(|(n, text)| cell("td", n, &escape(text))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let rows: String = cells.into_iter().map(row).collect();
        let gap = if by == By::Module { "<p class=\"soft\">By module:</p>\n" } else { "" };
        body += &format!(
            "{gap}<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}\
             </tbody>\n</table></div>\n"
        );
    }
    Some(Section { id: "operators", title: "Operators", body })
}

/// Returns a table cell; from the third column on, numbers are right-aligned.
fn cell(kind: &str, column: usize, text: &str) -> String {
    let class = if column < 2 { "" } else { " class=\"number\"" };
    format!("<{kind}{class}>{text}</{kind}>")
}
