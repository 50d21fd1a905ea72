//! Blocks alive at the peak: a treemap and a table.

use std::fmt::Write;

use memory::Category;

use super::treemap::{Area, squarify};
use crate::step_trace::{Holding, LiveSet, StepTrace, words};
use crate::svg::escape;
use crate::units::{bytes, counted, grouped, percent};

const WIDTH: f64 = 1120.0;
const HEIGHT: f64 = 380.0;
/// Maximum number of rows of the table.
const ROWS: usize = 24;

/// Draws the blocks alive at the peak of a step.
pub(super) fn drawing(trace: &StepTrace) -> String {
    let live = trace.live_after(trace.peak().events).without_layers();
    let mut out = "<figure class=\"card\">".to_owned();
    treemap(&mut out, &live);
    out += "</figure>\n";
    table(&mut out, &live);
    out
}

/// Draws an area for each category, divided among the owners.
fn treemap(out: &mut String, live: &LiveSet) {
    let sums = live.by_category();
    let mut categories: Vec<(Category, u64)> = sums.iter().filter(|(_, bytes)| *bytes > 0).collect();
    categories.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let weights: Vec<f64> = categories.iter().map(|(_, bytes)| *bytes as f64).collect();
    let areas = squarify(&weights, Area { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT });
    let total = live.bytes().max(1);
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"What is alive at the peak, {} in \
         all, as areas in proportion; the table below has the same figures\">",
        bytes(live.bytes())
    );
    for ((category, _), area) in categories.iter().zip(&areas) {
        let holdings: Vec<&Holding> =
            live.holdings.iter().filter(|h| h.owner.category == *category).collect();
        let weights: Vec<f64> = holdings.iter().map(|holding| holding.bytes as f64).collect();
        for (holding, area) in holdings.iter().zip(squarify(&weights, *area)) {
            part(out, holding, area, total);
        }
    }
    for ((category, sum), area) in categories.iter().zip(areas) {
        head(out, *category, *sum, area);
    }
    *out += "</svg>";
}

/// Returns the label of a holding: its module, or outside of modules its operator.
fn name(holding: &Holding) -> &str {
    match holding.owner.module.as_str() {
        "" => &holding.owner.operator,
        module => module,
    }
}

fn part(out: &mut String, holding: &Holding, area: Area, total: u64) {
    let Area { x, y, width, height } = area;
    let class = holding.owner.category.name();
    let share = percent(holding.bytes as f64 / total as f64);
    let who = escape(name(holding));
    let operator = escape(&holding.owner.operator);
    let _ = write!(
        out,
        "<g><title>{} · {who} · {operator}: {} in {}, {share}</title>\
         <rect class=\"part {class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
         height=\"{height:.1}\"/>",
        words(holding.owner.category),
        bytes(holding.bytes),
        counted(holding.blocks, "block"),
    );
    let letters = ((width - 12.0) / 6.9) as usize;
    let label: String = name(holding).chars().take(letters).collect();
    // Short areas have no name, rather than a few of its letters.
    let whole = label.chars().count() == name(holding).chars().count();
    if height > 42.0 && width > 54.0 && (whole || letters > 9) {
        let dots = if whole { "" } else { "…" };
        let _ = write!(
            out,
            "<text class=\"part-name\" x=\"{:.1}\" y=\"{:.1}\">{}{dots}</text>\
             <text class=\"part-bytes\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 7.0,
            y + height - 22.0,
            escape(&label),
            x + 7.0,
            y + height - 7.0,
            bytes(holding.bytes)
        );
    }
    *out += "</g>";
}

/// Draws the outline of a category's area, with the category's name in a corner.
fn head(out: &mut String, category: Category, sum: u64, area: Area) {
    let Area { x, y, width, height } = area;
    let _ = write!(
        out,
        "<rect class=\"edge\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
    );
    let text = words(category);
    let both = format!("{text} · {}", bytes(sum));
    let fits = |text: &str| 7.4 * text.chars().count() as f64 + 14.0 < width;
    let shown = [both, text].into_iter().find(|text| fits(text)).filter(|_| height > 24.0);
    if let Some(text) = shown {
        let class = category.name();
        let x = x + 7.0;
        let y = y + 17.0;
        let _ = write!(out, "<text class=\"head {class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
    }
}

fn table(out: &mut String, live: &LiveSet) {
    let total = live.bytes().max(1);
    *out += "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th>category</th><th>module</th>\
             <th>operator</th><th class=\"number\">blocks</th><th class=\"number\">bytes</th>\
             <th class=\"number\">share</th></tr></thead>\n<tbody>\n";
    for holding in live.holdings.iter().take(ROWS) {
        let share = holding.bytes as f64 / total as f64;
        let or_none = |text: &str| if text.is_empty() { "–".to_owned() } else { escape(text) };
        let category = holding.owner.category;
        let owner = &holding.owner;
        let _ = writeln!(
            out,
            "<tr><td><i class=\"{}\"></i>{}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td>\
             <td class=\"number share\"><span style=\"--share:{:.2}%\"></span>{}</td></tr>",
            category.name(),
            words(category),
            or_none(&owner.module),
            or_none(&owner.operator),
            grouped(holding.blocks),
            grouped(holding.bytes),
            100.0 * share,
            percent(share),
        );
    }
    *out += "</tbody>\n</table></div>\n";
    if live.holdings.len() > ROWS {
        let rest: u64 = live.holdings[ROWS..].iter().map(|holding| holding.bytes).sum();
        let more = live.holdings.len() - ROWS;
        let rest = bytes(rest);
        let _ = writeln!(out, "<p class=\"soft\">and {more} more, with {rest} in all.</p>");
    }
}
