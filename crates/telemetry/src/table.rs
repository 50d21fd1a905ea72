//! Text tables: aligned columns, and per-rank tables of memory, devices and time.

use std::fmt::Write;

use crate::rank_statistics::RankStatistics;
use crate::statistic::{Statistic, Unit};
use crate::units::{bytes, grouped, milliseconds, ranges};

mod phases;

pub use phases::phase_table;

/// Above this number of ranks, ranks with equal values share a row.
const LINES: usize = 16;
/// Statistic whose column is shown if a rank offloads to the host.
const HOST: Statistic = Statistic::PeakHostReservedBytes;
const GAP: &str = "  ";

/// Returns a table with a row for each rank: allocated and reserved bytes, their peaks, and peak host bytes
/// if any rank offloads. Below follow each column's maximum and minimum with the first such rank, and sums
/// over ranks that share a device. Ranks whose allocator retried or ran out of memory are listed last.
pub fn memory_table(ranks: &[RankStatistics]) -> String {
    let (columns, common) = name_columns(ranks);
    let shown = shown(ranks);
    let mut header = columns.iter().map(|column| column.title.to_owned()).collect::<Vec<_>>();
    header.extend(shown.iter().map(|statistic| title(*statistic)));
    let mut rows = vec![header];
    for group in groups(ranks, &columns) {
        let mut row = vec![ranges(group.iter().map(|statistics| statistics.rank))];
        row.extend(columns.iter().skip(1).map(|column| (column.name)(group[0]).to_owned()));
        row.extend(shown.iter().map(|statistic| exact(*statistic, group[0].get(*statistic))));
        rows.push(row);
    }
    let by_rank = rows.len();
    if ranks.len() > 1 {
        for (name, wins) in EXTREMES {
            let mut row = vec![name.to_owned()];
            row.resize(columns.len(), String::new());
            row.extend(shown.iter().map(|statistic| extreme(ranks, *statistic, wins)));
            rows.push(row);
        }
    }
    for device in devices(ranks).into_iter().filter(|device| device.len() > 1) {
        let mut row = vec![format!("sum of {}", numbers(&device))];
        row.resize(columns.len(), String::new());
        let sum = |statistic: Statistic| device.iter().map(|rank| rank.get(statistic)).sum();
        row.extend(shown.iter().map(|statistic| exact(*statistic, sum(*statistic))));
        rows.push(row);
    }
    let mut text = format!("memory by rank{common}\n");
    text += &aligned(&rows, columns.len(), &[1, by_rank]);
    text += &troubles(ranks);
    text
}

/// Returns the statistics in the memory table; host memory is included if any rank offloads.
fn shown(ranks: &[RankStatistics]) -> Vec<Statistic> {
    let offloads = ranks.iter().any(|rank| rank.get(HOST) > 0);
    Statistic::MEMORY.into_iter().chain(offloads.then_some(HOST)).collect()
}

/// Columns of the device table: what the memory used on a device consists of.
const ACCOUNT: [Statistic; 7] = [
    Statistic::ContextBytes,
    Statistic::ModuleBytes,
    Statistic::CommunicatorBytes,
    Statistic::WarmUpBytes,
    Statistic::ReservedBytes,
    Statistic::UnaccountedBytes,
    Statistic::DriverUsedBytes,
];

/// Returns a table with a row for each device: its ranks, the bytes used as the driver reports them, and
/// their breakdown. Empty if no device has a driver.
pub fn device_table(ranks: &[RankStatistics]) -> String {
    if ranks.iter().all(|rank| rank.get(Statistic::DriverUsedBytes) == 0) {
        return String::new();
    }
    let titles = ["context", "modules", "NCCL", "warm-up", "reserved", "unaccounted", "used (driver)"];
    let mut header = vec!["rank".to_owned()];
    header.extend(titles.map(str::to_owned));
    let row = |device: &Vec<&RankStatistics>| {
        let mut row = vec![numbers(device)];
        row.extend(ACCOUNT.map(|statistic| {
            let values = device.iter().map(|rank| rank.get(statistic));
            // Every rank of a device reports the other columns for the whole device.
            let value = match statistic {
                Statistic::ReservedBytes => values.sum(),
                _ => values.max().unwrap_or(0),
            };
            exact(statistic, value)
        }));
        row
    };
    let rows: Vec<_> = std::iter::once(header).chain(devices(ranks).iter().map(row)).collect();
    format!("device by rank\n{}", aligned(&rows, 1, &[1]))
}

/// Groups ranks by device.
fn devices(ranks: &[RankStatistics]) -> Vec<Vec<&RankStatistics>> {
    let mut devices: Vec<Vec<&RankStatistics>> = Vec::new();
    for rank in ranks {
        let same = |device: &&mut Vec<&RankStatistics>| {
            let shares = rank.get(Statistic::DeviceRanks) > 1;
            shares && device[0].device == rank.device && device[0].host == rank.host
        };
        match devices.iter_mut().find(same) {
            Some(device) => device.push(rank),
            None => devices.push(vec![rank]),
        }
    }
    devices
}

/// Formats the numbers of ranks, as in `0-3`.
fn numbers(ranks: &[&RankStatistics]) -> String {
    ranges(ranks.iter().map(|statistics| statistics.rank))
}

/// Returns a table with a row for each statistic that is nonzero on some rank. It has the value of a single
/// rank; for several ranks, the maximum and minimum with the first such rank.
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

/// Returns whether the first value replaces the second as the extreme.
type Wins = fn(u64, u64) -> bool;
const EXTREMES: [(&str, Wins); 2] = [("maximum", |new, old| new > old), ("minimum", |new, old| new < old)];

struct NameColumn {
    title: &'static str,
    name: fn(&RankStatistics) -> &str,
}

/// Optional columns after the rank's number, shown if the ranks' values differ.
const NAMES: [NameColumn; 2] = [
    NameColumn { title: "host", name: |rank| &rank.host },
    NameColumn { title: "device", name: |rank| &rank.device },
];

/// Returns the columns that identify a row, and text for the title with names that all ranks share.
fn name_columns(ranks: &[RankStatistics]) -> (Vec<NameColumn>, String) {
    let mut columns = vec![NameColumn { title: "rank", name: |_| "" }];
    let mut common = String::new();
    for NameColumn { title, name } in NAMES {
        match ranks {
            [first, others @ ..] if others.iter().all(|rank| name(rank) == name(first)) => {
                common += &format!(", {title} {}", name(first));
            }
            _ => columns.push(NameColumn { title, name }),
        }
    }
    (columns, common)
}

/// Groups the ranks of each row: one rank each or, above [`LINES`] ranks, all ranks with equal cells. Groups
/// are in the order of their first rank.
fn groups<'a>(ranks: &'a [RankStatistics], columns: &[NameColumn]) -> Vec<Vec<&'a RankStatistics>> {
    let mut groups: Vec<Vec<&RankStatistics>> = Vec::new();
    let same = |a: &RankStatistics, b: &RankStatistics| {
        Statistic::MEMORY.iter().chain([&HOST]).all(|statistic| a.get(*statistic) == b.get(*statistic))
            && columns.iter().all(|column| (column.name)(a) == (column.name)(b))
    };
    for rank in ranks {
        match groups.iter_mut().find(|group| ranks.len() > LINES && same(group[0], rank)) {
            Some(group) => group.push(rank),
            None => groups.push(vec![rank]),
        }
    }
    groups
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

/// Formats the extreme value over all ranks, with the first rank that has it.
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

/// Returns a line for each rank whose allocator retried or ran out of memory.
fn troubles(ranks: &[RankStatistics]) -> String {
    let mut text = String::new();
    for rank in ranks {
        let retries = rank.get(Statistic::Retries);
        let ooms = rank.get(Statistic::OutOfMemory);
        if retries + ooms > 0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "rank {}: retries {retries}, out of memory {ooms}", rank.rank);
        }
    }
    text
}

/// Aligns the cells of rows in columns: the first `left` columns to the left, the others to the right. Draws
/// a rule before each row whose index is in `rules`.
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
