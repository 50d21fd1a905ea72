//! Assembles the page from its sections.

use std::fmt::Write;

use super::section::Section;
use super::{
    MARK, Notice, Report, SchedulePicture, Tile, curves, experts, history, operators, panels, phases, ranks,
    sessions,
};
use crate::svg::escape;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

impl Report {
    /// Returns the page as HTML.
    #[must_use]
    pub fn to_html(&self) -> String {
        let sections: Vec<Section> = [
            curves::section(&self.curves),
            history::section(&self.history, self.unit),
            panels::memory_section(&self.ranks),
            panels::states_section(&self.ranks),
            panels::peak_section(&self.ranks),
            ranks::section(&self.ranks),
            phases::section(&self.phases),
            operators::section(self.operators.as_ref()),
            self.schedule_section(),
            experts::section(self.expert_loads.0, &self.expert_loads.1),
            sessions::section(&self.sessions),
            text_section("differences", "Differences", "Settings, device and software.", &self.differences),
            text_section(
                "configuration",
                "Configuration",
                "The resolved configuration, with every default.",
                &self.configuration,
            ),
        ]
        .into_iter()
        .flatten()
        .collect();
        let mut page = String::new();
        let title = escape(&self.title);
        let subtitle = escape(&self.subtitle);
        // Writing to a string cannot fail, here and below.
        let _ = write!(
            page,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}{MARK}\n<style>{STYLE}</style>\n</head>\n<body>\n\
             <header><div class=\"wide\">\n<p class=\"house\">{LOGO}Plimsoll</p>\n<h1>{title}</h1>\n\
             <p class=\"soft\">{subtitle}</p>\n<nav aria-label=\"Sections\">"
        );
        for Section { id, title, .. } in &sections {
            let _ = write!(page, "<a href=\"#{id}\">{title}</a>");
        }
        page += "</nav>\n</div></header>\n<main class=\"wide\">\n";
        notices(&mut page, &self.notices);
        tiles(&mut page, &self.tiles);
        for Section { id, title, body } in &sections {
            let _ = writeln!(
                page,
                "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n\
                 <h2 id=\"{id}-title\">{title}</h2>\n{body}</section>"
            );
        }
        let _ = writeln!(
            page,
            "</main>\n<div id=\"tip\" role=\"status\" aria-live=\"polite\" hidden></div>\n\
             <script>{SCRIPT}</script>\n</body>\n</html>"
        );
        page
    }

    fn schedule_section(&self) -> Option<Section> {
        let SchedulePicture { picture, note } = self.schedule.as_ref()?;
        let note = escape(note);
        let body = format!(
            "<p class=\"soft\">The passes of each rank over a step, with the number of the micro-batch, and \
             below them the memory that the rank holds; {note}.</p>\n<figure class=\"paper \
             scroll\">{picture}</figure>\n"
        );
        Some(Section { id: "schedule", title: "Schedule", body })
    }
}

/// Returns a section of preformatted text; `None` if the text is empty.
fn text_section(id: &'static str, title: &'static str, note: &str, text: &str) -> Option<Section> {
    let text = escape(text.trim());
    let body = format!("<p class=\"soft\">{note}</p>\n<pre tabindex=\"0\"><code>{text}</code></pre>\n");
    (!text.is_empty()).then_some(Section { id, title, body })
}

/// The logo: a ship's load line.
const LOGO: &str = "<svg viewBox=\"0 0 24 24\" aria-hidden=\"true\">\
                    <circle cx=\"12\" cy=\"12\" r=\"7\" fill=\"none\" stroke=\"currentColor\" \
                    stroke-width=\"2\"/>\
                    <path d=\"M1 12h22\" stroke=\"currentColor\" stroke-width=\"2\"/></svg>";

fn notices(page: &mut String, notices: &[Notice]) {
    for Notice { good, text } in notices {
        let (class, sign) = if *good { ("good", "✓") } else { ("bad", "!") };
        let text = escape(text);
        let _ = writeln!(
            page,
            "<p class=\"notice {class}\"><b aria-hidden=\"true\">{sign}</b><span>{text}</span></p>"
        );
    }
}

fn tiles(page: &mut String, tiles: &[Tile]) {
    if tiles.is_empty() {
        return;
    }
    *page += "<dl class=\"tiles\">\n";
    for Tile { name, value, note } in tiles {
        let value = escape(value);
        let note = escape(note);
        let _ = writeln!(
            page,
            "<div><dt>{name}</dt><dd><strong>{value}</strong><span class=\"soft\">{note}</span></dd></div>"
        );
    }
    *page += "</dl>\n";
}
