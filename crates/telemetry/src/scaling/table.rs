//! Runs as a table, and what it does not show at once in words.

use std::fmt::Write;

use super::series::{Series, alike, describe, how, series};
use super::{RankFigures, Run, Scaling};
use crate::table::{aligned, joined};
use crate::units::{bytes, grouped};

const TITLES: [&str; 10] = [
    "scaling",
    "reduction",
    "ranks",
    "micro-batches",
    "tokens/s",
    "efficiency",
    "step",
    "exposed",
    "peak allocated",
    "peak reserved",
];

/// A line by run: tokens a second, efficiency, the median step, exposed communication and its part of the step, and the
/// peaks of the rank that has most. Under it the peaks by rank where ranks differ, and whether the runs of a strong series
/// came to the same loss.
pub fn scaling_table(runs: &[Run]) -> String {
    let Some(first) = runs.first() else { return "no runs\n".to_owned() };
    let all = series(runs);
    let (mut text, one) = (String::new(), alike(runs));
    let with = if first.libraries.is_empty() { String::new() } else { format!(" ({})", first.libraries) };
    // Writing to a string does not fail, here and below.
    let _ = match one {
        true => writeln!(text, "{}{with}, ranks are {}", describe(first), first.ranks_are),
        false => writeln!(text, "{} series", all.len()),
    };
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    let mut rules = vec![1];
    if !one {
        rows[0].insert(0, "model".to_owned());
    }
    for series in &all {
        for run in &series.runs {
            let mut row = row(series, run);
            if !one {
                row.insert(0, format!("{}, {}", describe(run), run.ranks_are));
            }
            rows.push(row);
        }
        rules.push(rows.len());
    }
    text += &aligned(&rows, if one { 2 } else { 3 }, &rules);
    for series in &all {
        text += &peaks_by_rank(series);
    }
    for series in &all {
        text += &remarks(series);
    }
    text
}

fn row(series: &Series<'_>, run: &Run) -> Vec<String> {
    let efficiency = match series.runs.len() {
        1 => "–".to_owned(),
        _ => format!("{:.1} %", 100.0 * series.efficiency(run)),
    };
    let exposed = match run.ranks {
        1 => "–".to_owned(),
        _ => format!(
            "{:.3} ms, {:.1} %",
            1e3 * run.exposed_seconds(),
            100.0 * run.exposed_seconds() / run.step_seconds
        ),
    };
    vec![
        run.scaling.name().to_owned(),
        how(run),
        run.ranks.to_string(),
        run.micro_batches.to_string(),
        grouped(run.tokens_per_second().round() as u64),
        efficiency,
        format!("{:.3} ms", 1e3 * run.step_seconds),
        exposed,
        bytes(run.peak_allocated()),
        bytes(run.peak_reserved()),
    ]
}

/// A line for every run whose ranks have different peaks.
fn peaks_by_rank(series: &Series<'_>) -> String {
    let mut text = String::new();
    for run in &series.runs {
        let peaks = |rank: &RankFigures| (rank.peak_allocated_bytes, rank.peak_reserved_bytes);
        let mut groups: Vec<((u64, u64), Vec<usize>)> = Vec::new();
        for rank in &run.by_rank {
            match groups.iter_mut().find(|(known, _)| *known == peaks(rank)) {
                Some((_, ranks)) => ranks.push(rank.rank),
                None => groups.push((peaks(rank), vec![rank.rank])),
            }
        }
        if groups.len() < 2 {
            continue;
        }
        let said = groups.iter().map(|((allocated, reserved), ranks)| {
            let (allocated, reserved) = (grouped(*allocated), grouped(*reserved));
            let ends = if ranks.len() == 1 { "" } else { "s" };
            let ranks = joined(ranks.iter().copied());
            format!("{allocated} bytes allocated and {reserved} reserved on rank{ends} {ranks}")
        });
        let said = said.collect::<Vec<_>>().join("; ");
        let _ = writeln!(text, "peaks of {}, {} ranks: {said}", series.name(), run.ranks);
    }
    text
}

/// What a series' runs are measured against where that is not one rank, and the bits of their losses.
fn remarks(series: &Series<'_>) -> String {
    let (mut text, name) = (String::new(), series.name());
    if series.runs.len() < 2 {
        return text;
    }
    if series.against() != 1 {
        let _ = writeln!(text, "{name}: efficiency against {} ranks", series.against());
    }
    let first = series.runs[0];
    let comparable = series.runs.iter().all(|run| (run.warm_up, run.steps) == (first.warm_up, first.steps));
    if first.scaling == Scaling::Strong && comparable {
        let same = series.runs.iter().all(|run| run.loss.to_bits() == first.loss.to_bits());
        let ranks = series.runs.iter().map(|run| run.ranks.to_string()).collect::<Vec<_>>().join(", ");
        let _ = match same {
            true => writeln!(text, "{name}: the last loss is the same to the bit on {ranks} ranks"),
            false => {
                let losses = series.runs.iter().map(|run| format!("{:e}", run.loss)).collect::<Vec<_>>();
                writeln!(text, "{name}: the last losses on {ranks} ranks differ: {}", losses.join(", "))
            }
        };
    }
    text
}
