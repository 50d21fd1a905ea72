//! Tables by rank: memory, devices, time.

use std::fmt::Write;

use crate::rank_statistics::RankStatistics;
use crate::statistic::{Statistic, Unit};
use crate::units::{bytes, grouped, milliseconds};

mod phases;

pub use phases::phase_table;

/// Above this many ranks, those with equal values share a line.
const LINES: usize = 16;
/// What the table by rank shows.
const COLUMNS: [Statistic; 4] = [
    Statistic::AllocatedBytes,
    Statistic::ReservedBytes,
    Statistic::PeakAllocatedBytes,
    Statistic::PeakReservedBytes,
];
const GAP: &str = "  ";

/// A line by rank with the bytes allocated, reserved and their peaks, exact and in units; then the maximum and
/// the minimum of each with the rank that has it. Ranks that had to retry or ran out of memory are named below.
pub fn memory_table(ranks: &[RankStatistics]) -> String {
    let (columns, common) = places(ranks);
    let mut header = columns.iter().map(|column| column.title.to_owned()).collect::<Vec<_>>();
    header.extend(COLUMNS.iter().map(|statistic| title(*statistic)));
    let mut rows = vec![header];
    for group in groups(ranks, &columns) {
        let mut row = vec![rank_list(&group)];
        row.extend(columns.iter().skip(1).map(|column| (column.of)(group[0]).to_owned()));
        row.extend(COLUMNS.iter().map(|statistic| exact(*statistic, group[0].get(*statistic))));
        rows.push(row);
    }
    let by_rank = rows.len();
    if ranks.len() > 1 {
        for (name, wins) in EXTREMES {
            let mut row = vec![name.to_owned()];
            row.resize(columns.len(), String::new());
            row.extend(COLUMNS.iter().map(|statistic| extreme(ranks, *statistic, wins)));
            rows.push(row);
        }
    }
    let mut text = format!("memory by rank{common}\n");
    text += &aligned(&rows, columns.len(), &[1, by_rank]);
    text += &troubles(ranks);
    text
}

/// What accounts for the bytes that the drivers say are used.
const ACCOUNT: [Statistic; 7] = [
    Statistic::ContextBytes,
    Statistic::ModuleBytes,
    Statistic::CommunicatorBytes,
    Statistic::WarmUpBytes,
    Statistic::ReservedBytes,
    Statistic::UnaccountedBytes,
    Statistic::DriverUsedBytes,
];

/// A line by rank with the bytes that the driver of its device says are used, and what accounts for them; empty where no
/// device has a driver.
pub fn device_table(ranks: &[RankStatistics]) -> String {
    if ranks.iter().all(|rank| rank.get(Statistic::DriverUsedBytes) == 0) {
        return String::new();
    }
    let titles =
        ["context", "modules", "NCCL", "warm-up", "reserved", "unaccounted", "used, says the driver"];
    let mut header = vec!["rank".to_owned()];
    header.extend(titles.map(str::to_owned));
    let row = |rank: &RankStatistics| {
        let mut row = vec![rank.rank.to_string()];
        row.extend(ACCOUNT.map(|statistic| exact(statistic, rank.get(statistic))));
        row
    };
    let rows: Vec<_> = std::iter::once(header).chain(ranks.iter().map(row)).collect();
    format!("device by rank\n{}", aligned(&rows, 1, &[1]))
}

/// A line for every statistic that is not zero everywhere: its value for one rank, or its maximum and minimum
/// with the ranks that have them.
pub fn full_table(ranks: &[RankStatistics]) -> String {
    let mut rows = vec![match ranks.len() {
        1 => vec!["statistic".to_owned(), format!("rank {}", ranks[0].rank)],
        _ => vec!["statistic".to_owned(), "maximum".to_owned(), "minimum".to_owned()],
    }];
    for statistic in Statistic::all().iter().copied() {
        if ranks.iter().all(|rank| rank.get(statistic) == 0) {
            continue;
        }
        let mut row = vec![statistic.name().into_owned()];
        match ranks {
            [only] => row.push(exact(statistic, only.get(statistic))),
            _ => row.extend(EXTREMES.map(|(_, wins)| extreme(ranks, statistic, wins))),
        }
        rows.push(row);
    }
    aligned(&rows, 1, &[1])
}

/// Whether the first value takes the place of the second.
type Wins = fn(u64, u64) -> bool;
const EXTREMES: [(&str, Wins); 2] = [("maximum", |new, old| new > old), ("minimum", |new, old| new < old)];

/// A column that says which rank a line is of.
struct Place {
    title: &'static str,
    of: fn(&RankStatistics) -> &str,
}

/// What names a line besides the rank, where ranks differ in it.
const NAMES: [Place; 2] =
    [Place { title: "host", of: |rank| &rank.host }, Place { title: "device", of: |rank| &rank.device }];

/// The columns that name a line, and the words in the title for what all ranks have in common.
fn places(ranks: &[RankStatistics]) -> (Vec<Place>, String) {
    let mut columns = vec![Place { title: "rank", of: |_| "" }];
    let mut common = String::new();
    for Place { title, of } in NAMES {
        match ranks {
            [first, others @ ..] if others.iter().all(|rank| of(rank) == of(first)) => {
                common += &format!(", {title} {}", of(first));
            }
            _ => columns.push(Place { title, of }),
        }
    }
    (columns, common)
}

/// The ranks of each line: one, or with many ranks all that read the same, in the order of their first.
fn groups<'a>(ranks: &'a [RankStatistics], columns: &[Place]) -> Vec<Vec<&'a RankStatistics>> {
    let mut groups: Vec<Vec<&RankStatistics>> = Vec::new();
    let same = |a: &RankStatistics, b: &RankStatistics| {
        COLUMNS.iter().all(|statistic| a.get(*statistic) == b.get(*statistic))
            && columns.iter().all(|column| (column.of)(a) == (column.of)(b))
    };
    for rank in ranks {
        match groups.iter_mut().find(|group| ranks.len() > LINES && same(group[0], rank)) {
            Some(group) => group.push(rank),
            None => groups.push(vec![rank]),
        }
    }
    groups
}

/// Rank numbers with runs joined: `0-3,8`.
fn rank_list(ranks: &[&RankStatistics]) -> String {
    joined(ranks.iter().map(|statistics| statistics.rank))
}

/// Rising numbers with runs joined: `0-3,8`.
pub fn joined(numbers: impl Iterator<Item = usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for rank in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

fn title(statistic: Statistic) -> String {
    statistic.name().trim_end_matches("_bytes").replace('_', " ")
}

fn exact(statistic: Statistic, value: u64) -> String {
    match statistic.unit() {
        Unit::Bytes => format!("{} ({})", grouped(value), bytes(value)),
        Unit::Count => grouped(value),
        Unit::Microseconds => milliseconds(value),
    }
}

/// The value that wins over all others, and the first rank that has it.
fn extreme(ranks: &[RankStatistics], statistic: Statistic, wins: Wins) -> String {
    let values = ranks.iter().map(|rank| (rank.get(statistic), rank.rank));
    let best = values.reduce(|old, new| if wins(new.0, old.0) { new } else { old });
    let Some((value, rank)) = best else { return String::new() };
    let everywhere = ranks.iter().all(|rank| rank.get(statistic) == value);
    let short = match statistic.unit() {
        Unit::Bytes => bytes(value),
        Unit::Count | Unit::Microseconds => exact(statistic, value),
    };
    if everywhere { format!("{short} on all") } else { format!("{short} on rank {rank}") }
}

/// A line for every rank whose allocator had to retry or gave up.
fn troubles(ranks: &[RankStatistics]) -> String {
    let mut text = String::new();
    for rank in ranks {
        let (retries, ooms) = (rank.get(Statistic::Retries), rank.get(Statistic::OutOfMemory));
        if retries + ooms > 0 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "rank {}: retries {retries}, out of memory {ooms}", rank.rank);
        }
    }
    text
}

/// Rows with their columns under each other, the first `left` of them flush left; a rule before the rows in
/// `rules`.
pub fn aligned(rows: &[Vec<String>], left: usize, rules: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| cell(row, column)).max().unwrap_or(0)).collect();
    let rule = "-".repeat(widths.iter().sum::<usize>() + GAP.len() * columns.saturating_sub(1));
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        if rules.contains(&number) {
            text += &format!("{rule}\n");
        }
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join(GAP).trim_end();
        text.push('\n');
    }
    text
}
