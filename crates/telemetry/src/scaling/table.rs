//! A table of runs, with remarks below it.

use std::fmt::Write;

use super::alone::{Alone, against_one};
use super::rounds::Rounds;
use super::series::{Series, alike, describe, how, name, series};
use super::{RankFigures, Scaling, ScalingRun};
use crate::table::aligned;
use crate::units::{bytes, grouped, percent, ranges};

/// Title of the column after the efficiency, if there is a baseline.
const AGAINST_ALONE: &str = "against alone";
/// Indices of the throughput and of the efficiency in [`TITLES`].
const THROUGHPUT: usize = 4;
const EFFICIENCY: usize = 5;

const TITLES: [&str; 10] = [
    "scaling",
    "reduction",
    "ranks",
    "micro-batches",
    "throughput",
    "efficiency",
    "step",
    "exposed",
    "peak allocated",
    "peak reserved",
];

/// Returns a table with a row for each run: throughput, efficiency, the median step, exposed communication
/// and its fraction of the step, and the peaks of the rank with the most. If devices were measured alone, a
/// column has the throughput relative to that baseline. Remarks below the table list peaks that differ
/// between ranks, the fastest and slowest device alone, the spread of rounds, and whether a strong series'
/// runs have the same loss.
pub fn scaling_table(runs: &[ScalingRun]) -> String {
    let Some(first) = runs.first() else { return "no runs\n".to_owned() };
    let all = series(runs);
    let alone = Alone::among(runs);
    let mut text = String::new();
    let one = alike(runs);
    let with = if first.libraries.is_empty() { String::new() } else { format!(" ({})", first.libraries) };
    // Writing to a string cannot fail, here and below.
    let _ = match one {
        true => writeln!(text, "{}{with}, ranks are {}", describe(first), first.ranks_are),
        false => writeln!(text, "{} series", all.len()),
    };
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    if runs.iter().all(|run| run.unit == first.unit) {
        rows[0][THROUGHPUT].clone_from(&first.unit);
    }
    let mut rules = vec![1];
    if !one {
        rows[0].insert(0, "model".to_owned());
    }
    if !alone.is_empty() {
        rows[0].insert(EFFICIENCY + 1 + usize::from(!one), AGAINST_ALONE.to_owned());
    }
    let mut add = |run: &ScalingRun, efficiency: Option<f64>| {
        let mut row = row(run, efficiency);
        if !alone.is_empty() {
            row.insert(
                EFFICIENCY + 1,
                percent_or_dash(alone.against(run).filter(|_| run.scaling != Scaling::Alone)),
            );
        }
        if !one {
            row.insert(0, format!("{}, {}", describe(run), run.ranks_are));
        }
        rows.push(row);
        rows.len()
    };
    for series in &all {
        let compared = series.runs.len() > 1;
        let mut end = 1;
        for run in &series.runs {
            end = add(run, compared.then(|| series.efficiency(run)));
        }
        rules.push(end);
    }
    for rounds in alone.all() {
        add(rounds.median(), against_one(rounds.median(), &all));
    }
    text += &aligned(&rows, if one { 2 } else { 3 }, &rules);
    for series in &all {
        text += &peaks_by_rank(series);
    }
    for rounds in alone.all() {
        text += &imbalance(rounds.median());
    }
    for series in &all {
        text += &remarks(series);
    }
    text + &spread_of_rounds(&all, &alone)
}

fn percent_or_dash(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), percent)
}

fn row(run: &ScalingRun, efficiency: Option<f64>) -> Vec<String> {
    let exposed = match run.communicates() {
        false => "–".to_owned(),
        true => format!(
            "{:.3} ms, {}",
            1e3 * run.exposed_seconds(),
            percent(run.exposed_seconds() / run.step_seconds)
        ),
    };
    let step = match fastest_and_slowest(run).filter(|_| run.scaling == Scaling::Alone) {
        Some((fastest, slowest)) => {
            format!("{:.3} to {:.3} ms", 1e3 * fastest.step_seconds, 1e3 * slowest.step_seconds)
        }
        None => format!("{:.3} ms", 1e3 * run.step_seconds),
    };
    vec![
        run.scaling.name().to_owned(),
        how(run),
        run.ranks.to_string(),
        run.micro_batches.to_string(),
        grouped(run.tokens_per_second().round() as u64),
        percent_or_dash(efficiency),
        step,
        exposed,
        bytes(run.peak_allocated()),
        bytes(run.peak_reserved()),
    ]
}

/// Returns the fastest and the slowest of several ranks; `None` for one rank.
fn fastest_and_slowest(run: &ScalingRun) -> Option<(&RankFigures, &RankFigures)> {
    let by_step = |a: &&RankFigures, b: &&RankFigures| a.step_seconds.total_cmp(&b.step_seconds);
    let fastest = run.by_rank.iter().min_by(by_step)?;
    let slowest = run.by_rank.iter().max_by(by_step)?;
    (run.ranks > 1).then_some((fastest, slowest))
}

/// Compares the fastest and the slowest device, and states the best possible throughput of ranks that wait
/// for each other.
fn imbalance(run: &ScalingRun) -> String {
    let Some((fastest, slowest)) = fastest_and_slowest(run) else { return String::new() };
    let each: Vec<f64> = run.tokens_per_second_of_each().collect();
    let least = each.iter().copied().fold(f64::INFINITY, f64::min);
    let named = |rank: &RankFigures| match rank.device.as_str() {
        "" | "cpu" => format!("rank {} on {}", rank.rank, rank.host),
        device => format!("rank {} ({device} on {})", rank.rank, rank.host),
    };
    let micro_batches = run.micro_batches_of_each();
    let ends = if micro_batches == 1 { "" } else { "es" };
    format!(
        "alone, {micro_batches} micro-batch{ends} each: {} is the fastest, {} takes {} longer; in step with \
         each other, these {} reach at most {} of their sum alone\n",
        named(fastest),
        named(slowest),
        percent(slowest.step_seconds / fastest.step_seconds - 1.0),
        run.ranks,
        percent(least * each.len() as f64 / each.iter().sum::<f64>())
    )
}

/// Reports the spread of rounds of the run whose rounds differ most.
fn spread_of_rounds(all: &[Series<'_>], alone: &Alone<'_>) -> String {
    let several = || {
        let rounds = all.iter().flat_map(|series| &series.rounds).chain(alone.all());
        rounds.filter(|rounds| rounds.all().len() > 1)
    };
    let Some(worst) = several().max_by(|a, b| a.spread().total_cmp(&b.spread())) else {
        return String::new();
    };
    let counts = || several().map(|rounds| rounds.all().len());
    let least = counts().min().unwrap_or(0);
    let most = counts().max().unwrap_or(0);
    let count = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let run = worst.median();
    let name = if run.scaling == Scaling::Alone { "alone".to_owned() } else { name(run) };
    let ends = if run.ranks == 1 { "" } else { "s" };
    format!(
        "{count} rounds, of which the median counts; their speeds differ by at most {} ({name}, {} \
         rank{ends})\n",
        percent(worst.spread()),
        run.ranks
    )
}

/// Returns a line for each run whose ranks have different peaks.
fn peaks_by_rank(series: &Series<'_>) -> String {
    let mut text = String::new();
    for run in &series.runs {
        let peaks = |rank: &RankFigures| (rank.peak_allocated_bytes, rank.peak_reserved_bytes);
        let mut groups: Vec<((u64, u64), Vec<usize>)> = Vec::new();
        for rank in &run.by_rank {
            match groups.iter_mut().find(|(other, _)| *other == peaks(rank)) {
                Some((_, ranks)) => ranks.push(rank.rank),
                None => groups.push((peaks(rank), vec![rank.rank])),
            }
        }
        if groups.len() < 2 {
            continue;
        }
        let message = groups.iter().map(|((allocated, reserved), ranks)| {
            let allocated = grouped(*allocated);
            let reserved = grouped(*reserved);
            let ends = if ranks.len() == 1 { "" } else { "s" };
            let ranks = ranges(ranks.iter().copied());
            format!("{allocated} bytes allocated and {reserved} reserved on rank{ends} {ranks}")
        });
        let message = message.collect::<Vec<_>>().join("; ");
        let _ = writeln!(text, "peaks of {}, {} ranks: {message}", series.name(), run.ranks);
    }
    text
}

/// States which number of ranks efficiency is relative to, unless it is one, and whether the losses are
/// bit-identical.
fn remarks(series: &Series<'_>) -> String {
    let mut text = String::new();
    let name = series.name();
    if series.runs.len() < 2 {
        return text;
    }
    if series.base_ranks() != 1 {
        let _ = writeln!(text, "{name}: efficiency relative to {} ranks", series.base_ranks());
    }
    let first = series.runs[0];
    let all = || series.rounds.iter().flat_map(|rounds| rounds.all());
    let comparable = all().all(|run| (run.warm_up, run.steps) == (first.warm_up, first.steps));
    if first.scaling == Scaling::Strong && comparable {
        let same = all().all(|run| run.loss.to_bits() == first.loss.to_bits());
        let ranks = series.runs.iter().map(|run| run.ranks.to_string()).collect::<Vec<_>>().join(", ");
        let _ = match same {
            true => writeln!(text, "{name}: the last loss is the same to the bit on {ranks} ranks"),
            false => {
                let losses = series.rounds.iter().map(losses_of).collect::<Vec<_>>();
                writeln!(text, "{name}: the last losses on {ranks} ranks differ: {}", losses.join(", "))
            }
        };
    }
    text
}

fn losses_of(rounds: &Rounds<'_>) -> String {
    let mut losses: Vec<String> = Vec::new();
    for loss in rounds.all().iter().map(|run| format!("{:e}", run.loss)) {
        if !losses.contains(&loss) {
            losses.push(loss);
        }
    }
    losses.join(" or ")
}
