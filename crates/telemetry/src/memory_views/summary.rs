//! The allocator's counters, formatted like `torch.cuda.memory_summary()`.

use std::fmt::Write;

use memory::Statistics;

const WIDTH: usize = 75;

/// Key and name of each metric, and whether its unit is bytes. The first [`POOLED`] metrics exist for each
/// kind of pool.
const ROWS: [(&str, &str, bool); 11] = [
    ("allocated_bytes", "Allocated memory", true),
    ("active_bytes", "Active memory", true),
    ("requested_bytes", "Requested memory", true),
    ("reserved_bytes", "GPU reserved memory", true),
    ("inactive_split_bytes", "Non-releasable memory", true),
    ("allocation", "Allocations", false),
    ("active", "Active allocs", false),
    ("segment", "GPU reserved segments", false),
    ("inactive_split", "Non-releasable allocs", false),
    ("oversize_allocations", "Oversize allocations", false),
    ("oversize_segments", "Oversize GPU segments", false),
];
const POOLED: usize = 9;
const COLUMNS: [&str; 4] = ["current", "peak", "allocated", "freed"];

/// The device that a table describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summarized {
    /// The GPU with this index; the table equals PyTorch's character by character.
    Gpu(u32),
    /// Host memory of the rank with this number.
    Host(u32),
}

/// Returns the table of one device, each line ending with a line feed. `abbreviated` omits the rows of
/// individual pools.
#[must_use]
pub fn memory_summary(statistics: &Statistics, device: Summarized, abbreviated: bool) -> String {
    let value = |key: &str| statistics.get(key).unwrap_or(0);
    let mut table = String::new();
    rule(&mut table, '=');
    line(
        &mut table,
        &match device {
            Summarized::Gpu(number) => {
                format!("{:17} PyTorch CUDA memory summary, device ID {number:<17} ", "")
            }
            Summarized::Host(rank) => format!("{:17} CPU memory summary, rank {rank:<31} ", ""),
        },
    );
    rule(&mut table, '-');
    let ooms = value("num_ooms");
    let retries = value("num_alloc_retries");
    line(
        &mut table,
        &match device {
            Summarized::Gpu(_) => {
                format!("{:11} CUDA OOMs: {ooms:<12} | {:6} cudaMalloc retries: {retries:<8}  ", "", "")
            }
            Summarized::Host(_) => {
                format!("{:11} OOMs: {ooms:<17} | {:6} retries: {retries:<19}  ", "", "")
            }
        },
    );
    rule(&mut table, '=');
    line(&mut table, "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ");
    for (index, (key, name, bytes)) in ROWS.into_iter().enumerate() {
        rule(&mut table, '-');
        let pools: &[(&str, &str)] = match (index < POOLED, abbreviated) {
            (false, _) => &[("", "")],
            (true, true) => &[(".all", "")],
            (true, false) => &[
                (".all", ""),
                (".large_pool", "      from large pool"),
                (".small_pool", "      from small pool"),
            ],
        };
        // All rows of a metric use the unit chosen for its first row.
        let first = COLUMNS.map(|column| value(&format!("{key}{}.{column}", pools[0].0)));
        for (pool, pool_name) in pools {
            let title = if pool_name.is_empty() { name } else { pool_name };
            let on_gpu = matches!(device, Summarized::Gpu(_));
            let title = if on_gpu { title.to_owned() } else { title.replace("GPU reserved", "Reserved") };
            let cells = COLUMNS.map(|column| value(&format!("{key}{pool}.{column}")));
            let format = if bytes { bytes_cell } else { count_cell };
            let cells: Vec<String> =
                cells.into_iter().zip(first).map(|(cell, scale)| format(cell, scale)).collect();
            line(&mut table, &format!(" {title:<21} | {} ", cells.join(" | ")));
        }
    }
    rule(&mut table, '=');
    table
}

fn rule(table: &mut String, with: char) {
    line(table, &with.to_string().repeat(WIDTH));
}

fn line(table: &mut String, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(table, "|{text}|");
}

/// Formats bytes in ten characters, in the unit chosen for `scale`.
fn bytes_cell(mut value: i64, mut scale: i64) -> String {
    let mut units = ["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while scale >= 768 * 1024 {
        let Some(next) = units.next() else { break };
        (value, scale, unit) = (value.div_euclid(1024), scale / 1024, next);
    }
    format!("{value:6} {unit}")
}

/// Formats a count in ten characters, in the unit chosen for `scale`.
fn count_cell(mut value: i64, mut scale: i64) -> String {
    let mut units = [" ", "K", "M"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while scale >= 750 * 1000 {
        let Some(next) = units.next() else { break };
        (value, scale, unit) = (value.div_euclid(1000), scale / 1000, next);
    }
    format!("{value:7} {unit} ")
}
