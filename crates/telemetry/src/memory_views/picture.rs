//! Draws segments and blocks over time as one self-contained HTML page.

use std::collections::HashMap;
use std::fmt::Write;

use memory::{BlockState, Category, Snapshot};

use super::lifetimes::{Lifetimes, Moment};
use crate::step_trace::{without_numbers, words};
use crate::svg::escape;
use crate::units::{bytes, percent};

mod layout;
mod palette;
mod panels;

use palette::colour;

const STYLE: &str = include_str!("picture.css");

/// Draws a snapshot with its history as an HTML page: bytes by category over time, every block at its
/// position in its segment over time, and the blocks alive at the peak. Time is counted in allocator events.
#[must_use]
pub fn picture(snapshot: &Snapshot, title: &str) -> String {
    let lives = Lifetimes::from_snapshot(snapshot);
    let curves = lives.curves();
    let peak = (0..curves.len()).max_by_key(|now| (curves[*now].used(), usize::MAX - now)).unwrap_or(0);
    let mut page = String::new();
    let title = escape(title);
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>\n"
    );
    figures(&mut page, snapshot, curves.get(peak).map_or(0, Moment::used));
    legend(&mut page, &curves);
    panels::bytes_over_time(&mut page, &lives, &curves, peak);
    panels::blocks_over_time(&mut page, &lives);
    holders(&mut page, snapshot, &lives, peak);
    page += "</main></body></html>\n";
    page
}

/// Writes the final reserved, allocated and fragmented bytes.
fn figures(page: &mut String, snapshot: &Snapshot, peak: u64) {
    let (mut reserved, mut allocated, mut split, mut largest) = (0, 0, 0, 0);
    for segment in &snapshot.segments {
        reserved += segment.total_size;
        allocated += segment.allocated_size();
        for idle in segment.blocks.iter().filter(|b| b.state == BlockState::Inactive) {
            largest = idle.size.max(largest);
            split += if segment.blocks.len() > 1 { idle.size } else { 0 };
        }
    }
    let ratio =
        if allocated == 0 { "–".to_owned() } else { format!("{:.3}", reserved as f64 / allocated as f64) };
    let cells = [
        ("reserved from the device", bytes(reserved)),
        ("allocated", bytes(allocated)),
        ("peak in use", bytes(peak)),
        ("reserved / allocated", ratio),
        ("idle in segments in use", bytes(split)),
        ("largest idle block", bytes(largest)),
    ];
    *page += "<dl class=\"figures\">";
    for (name, value) in cells {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    let events = snapshot.events.len();
    let _ = writeln!(
        page,
        "</dl>\n<p class=\"note\">The figures are those at the end of {events} recorded events. Below, time \
         runs from left to right in these events; point at anything to read what it is.</p>"
    );
}

/// Writes a legend of the categories that occur, each with its peak bytes.
fn legend(page: &mut String, curves: &[Moment]) {
    *page += "<p class=\"legend\">";
    for category in Category::ALL {
        let most = curves.iter().map(|moment| moment.by_category[category.index()]).max().unwrap_or(0);
        if most > 0 {
            let colour = colour(category);
            let name = words(category);
            let most = bytes(most);
            let _ = write!(page, "<span><i style=\"background:{colour}\"></i>{name} <b>≤ {most}</b></span>");
        }
    }
    *page += "<span><i class=\"held\"></i>reserved, not in use</span></p>\n";
}

/// Writes a table of the owners that hold the most bytes at the peak.
fn holders(page: &mut String, snapshot: &Snapshot, lives: &Lifetimes, peak: usize) {
    let mut sums: HashMap<(String, &str, Category), (u64, usize)> = HashMap::new();
    for block in lives.blocks.iter().filter(|b| b.begin <= peak && peak < b.end) {
        let module = without_numbers(snapshot.labels.name(block.tag.module));
        let who = (module, block.tag.operator, block.tag.category);
        let sum = sums.entry(who).or_default();
        *sum = (sum.0 + block.size, sum.1 + 1);
    }
    let total: u64 = sums.values().map(|(held, _)| held).sum();
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    const SHOWN: usize = 20;
    *page += "<h2>What is alive at the peak</h2>\n<p class=\"note\">Layers are added up.</p>\n\
              <table><thead><tr><th>module</th><th>operator</th><th>category</th><th>blocks</th>\
              <th>bytes</th><th>share</th></tr></thead><tbody>\n";
    for ((module, operator, category), (held, blocks)) in rows.iter().take(SHOWN) {
        let share = percent(*held as f64 / total.max(1) as f64);
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td><i style=\"background:{}\"></i>{}</td><td>{blocks}</td><td>{}</td>\
             <td>{share}</td></tr>",
            escape(if module.is_empty() { "–" } else { module }),
            escape(if operator.is_empty() { "–" } else { operator }),
            colour(*category),
            words(*category),
            bytes(*held),
        );
    }
    *page += "</tbody></table>\n";
    if rows.len() > SHOWN {
        let rest: u64 = rows[SHOWN..].iter().map(|row| row.1.0).sum();
        let _ = writeln!(page, "<p class=\"note\">and {} more with {}</p>", rows.len() - SHOWN, bytes(rest));
    }
}
