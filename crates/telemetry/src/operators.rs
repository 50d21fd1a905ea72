//! Time, memory and FLOPs of a step by operator, as `plimsoll profile` prints them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use system::input;

use crate::error::{Result, Unreadable};
use crate::run_files::{atomic_write, to_json};
use crate::table::aligned;
use crate::units::{bytes, percent};

/// Name of the profile's file in a run directory.
pub const FILE: &str = "profile.json";

/// Maximum size of a profile that is read, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// One call of an operator, or an interval of a phase outside all calls. Its own figures exclude nested
/// calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatorSpan {
    /// Path of the calling module; empty outside calls.
    pub module: String,
    /// Name of the operator, or of the phase in parentheses.
    pub operator: String,
    /// `forward`, `recompute`, `backward`, `backward weight`, or the name of the phase.
    pub pass: String,
    /// Whether this is a call, not an interval outside calls.
    pub is_call: bool,
    /// Start on the device, in microseconds.
    pub begin: f64,
    /// End on the device, in microseconds.
    pub end: f64,
    /// Microseconds on the device's compute stream.
    pub device_microseconds: f64,
    /// Microseconds on the host.
    pub host_microseconds: f64,
    /// Bytes that it allocated.
    pub allocated: u64,
    /// Bytes that it allocated minus bytes that it freed.
    pub kept: i64,
    /// FLOPs of matmuls and attention.
    pub flops: u64,
}

/// The grouping of a table into rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// A row for each operator and pass.
    #[default]
    Operator,
    /// A row for each module and pass.
    Module,
}

/// Sort key of a table's rows, descending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Time on the device.
    #[default]
    Time,
    /// Bytes kept.
    Memory,
    /// Bytes allocated.
    Bytes,
}

/// A row: all calls of one operator or module in one pass. Figures are means over steps, summed over ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatorRow {
    /// Name of the operator or module.
    pub name: String,
    /// The pass.
    pub pass: String,
    /// Number of calls.
    pub calls: f64,
    /// Milliseconds on the device.
    pub device_milliseconds: f64,
    /// Milliseconds on the host.
    pub host_milliseconds: f64,
    /// Bytes allocated.
    pub allocated_bytes: f64,
    /// Bytes allocated less bytes freed.
    pub kept_bytes: f64,
    /// FLOPs of matmuls and attention.
    pub flops: f64,
}

/// The measured operators of a configuration's step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatorProfile {
    /// Model of the device.
    pub device: String,
    /// Number of ranks; their figures are summed.
    pub ranks: usize,
    /// Number of measured steps.
    pub steps: u64,
    /// Milliseconds of the median step, run without measuring operators.
    pub step_milliseconds: f64,
    /// Highest FLOP/s reached on one rank, by large matmuls in the compute dtype or by any row.
    pub flops_per_second: f64,
    /// Rows by operator.
    pub operators: Vec<OperatorRow>,
    /// Rows of the profile by module.
    pub modules: Vec<OperatorRow>,
    /// Bytes sent in a step along each axis with several ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<AxisBytes>,
    /// Time that compute waits for other ranks in a step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
}

/// Bytes sent in a step along one axis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AxisBytes {
    /// Name of the axis.
    pub axis: String,
    /// Bytes sent by the rank that sends the most.
    pub step_bytes_sent: u64,
}

/// Time for which compute waits in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// Name of the waiting phase.
    pub phase: String,
    /// Mean milliseconds per step, on the rank that waits longest.
    pub milliseconds: f64,
}

impl OperatorProfile {
    /// Sums the spans of all ranks over `steps` steps. The other fields are empty.
    pub fn new<'a>(spans: impl Iterator<Item = &'a OperatorSpan> + Clone, steps: u64) -> Self {
        let rows = |name: fn(&OperatorSpan) -> &str| {
            let mut rows: BTreeMap<(String, String), OperatorRow> = BTreeMap::new();
            for span in spans.clone() {
                let name = if span.is_call { name(span) } else { &span.operator };
                let key = (name.to_owned(), span.pass.clone());
                rows.entry(key.clone()).or_insert_with(|| OperatorRow::new(key)).add(span, steps);
            }
            rows.into_values().collect()
        };
        OperatorProfile {
            steps,
            operators: rows(|span| &span.operator),
            modules: rows(|span| &span.module),
            ..OperatorProfile::default()
        }
    }

    /// Sets the best rate to `flops_per_second`, the rate of large matmuls. A row that is faster, as with
    /// operands in cache, replaces it.
    #[must_use]
    pub fn with_best_rate(self, flops_per_second: f64) -> Self {
        let rows = self.operators.iter().chain(&self.modules).map(OperatorRow::flops_per_second);
        let flops_per_second = rows.fold(flops_per_second, f64::max);
        OperatorProfile { flops_per_second, ..self }
    }

    /// Returns the sum of all rows.
    #[must_use]
    pub fn total(&self) -> OperatorRow {
        let mut total = OperatorRow::new(("total".to_owned(), String::new()));
        for row in &self.operators {
            total.calls += row.calls;
            total.device_milliseconds += row.device_milliseconds;
            total.host_milliseconds += row.host_milliseconds;
            total.allocated_bytes += row.allocated_bytes;
            total.kept_bytes += row.kept_bytes;
            total.flops += row.flops;
        }
        total
    }

    /// Returns the rows by operator or module, sorted by `sort`.
    #[must_use]
    pub fn rows(&self, by: By, sort: Sort) -> Vec<&OperatorRow> {
        let rows = match by {
            By::Operator => &self.operators,
            By::Module => &self.modules,
        };
        let value = |row: &OperatorRow| match sort {
            Sort::Time => row.device_milliseconds,
            Sort::Memory => row.kept_bytes,
            Sort::Bytes => row.allocated_bytes,
        };
        let mut sorted: Vec<_> = rows.iter().collect();
        sorted.sort_by(|a, b| value(b).total_cmp(&value(a)));
        sorted
    }

    /// Returns a table's header and the cells of `rows`.
    pub(crate) fn cells(&self, by: By, rows: &[&OperatorRow]) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let first = if by == By::Operator { "operator" } else { "module" };
        let header = vec![
            first,
            "pass",
            "calls",
            "device ms",
            "share",
            "host ms",
            "allocated",
            "kept",
            "GFLOP",
            "of best",
        ];
        let whole = self.total().device_milliseconds;
        (header, rows.iter().map(|row| row.cells(whole, self.flops_per_second)).collect())
    }

    /// Returns a table of the first `limit` rows, one row for all others, and the total.
    #[must_use]
    pub fn table(&self, by: By, sort: Sort, limit: usize) -> String {
        let rows = self.rows(by, sort);
        let total = self.total();
        let (shown, rest) = rows.split_at(limit.min(rows.len()));
        let other = rest
            .iter()
            .fold(OperatorRow::new((format!("{} more", rest.len()), String::new())), |sum, row| {
                sum.plus(row)
            });
        let mut all = shown.to_vec();
        all.extend((!rest.is_empty()).then_some(&other));
        all.push(&total);
        let (header, cells) = self.cells(by, &all);
        let mut table = vec![header.into_iter().map(str::to_owned).collect()];
        let end = cells.len();
        table.extend(cells);
        aligned(&table, 2, &[1, end])
    }

    /// Returns two lines: the bytes sent in a step along each axis, and the time that compute waits. Empty
    /// for one rank.
    #[must_use]
    pub fn communication(&self) -> String {
        if self.sent.is_empty() {
            return String::new();
        }
        let sent = self.sent.iter().map(|each| format!("{} {}", each.axis, bytes(each.step_bytes_sent)));
        let waits = self.waits.iter().map(|wait| format!("{} {:.3} ms", wait.phase, wait.milliseconds));
        let join =
            |parts: Vec<String>| if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
        let sent = join(sent.collect());
        let waits = join(waits.collect());
        format!(
            "sent in a step along each axis: {sent}\ncompute waits in a step, on the rank that waits most: {waits}\n\n"
        )
    }

    /// Writes the profile to `path`.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic_write(path, &to_json(path, serde_json::to_vec_pretty(self))?)
    }

    /// Reads a profile; `None` if there is no such file.
    ///
    /// # Errors
    /// The file cannot be read or is not a profile.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let text = match input::read(path, MOST_BYTES) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.unreadable(path)?,
        };
        let read = serde_json::from_slice(&text);
        read.map(Some).unreadable(path)
    }
}

impl OperatorRow {
    fn new((name, pass): (String, String)) -> Self {
        OperatorRow { name, pass, ..OperatorRow::default() }
    }

    fn add(&mut self, span: &OperatorSpan, steps: u64) {
        let share = 1.0 / steps.max(1) as f64;
        self.calls += if span.is_call { share } else { 0.0 };
        self.device_milliseconds += share * span.device_microseconds / 1e3;
        self.host_milliseconds += share * span.host_microseconds / 1e3;
        self.allocated_bytes += share * span.allocated as f64;
        self.kept_bytes += share * span.kept as f64;
        self.flops += share * span.flops as f64;
    }

    /// Returns a rank's FLOP/s; 0 without time on the device.
    fn flops_per_second(&self) -> f64 {
        if self.device_milliseconds > 0.0 { 1e3 * self.flops / self.device_milliseconds } else { 0.0 }
    }

    fn plus(self, other: &Self) -> Self {
        OperatorRow {
            calls: self.calls + other.calls,
            device_milliseconds: self.device_milliseconds + other.device_milliseconds,
            host_milliseconds: self.host_milliseconds + other.host_milliseconds,
            allocated_bytes: self.allocated_bytes + other.allocated_bytes,
            kept_bytes: self.kept_bytes + other.kept_bytes,
            flops: self.flops + other.flops,
            ..self
        }
    }

    fn cells(&self, whole: f64, rate: f64) -> Vec<String> {
        let or_empty = |value: f64, text: String| if value > 0.0 { text } else { String::new() };
        let calls = if self.calls.fract() == 0.0 { 0 } else { 1 };
        let reached = self.flops_per_second() / rate;
        let sign = if self.kept_bytes < 0.0 { "-" } else { "" };
        vec![
            self.name.clone(),
            self.pass.clone(),
            or_empty(self.calls, format!("{:.calls$}", self.calls)),
            format!("{:.3}", self.device_milliseconds),
            percent(self.device_milliseconds / whole.max(f64::MIN_POSITIVE)),
            format!("{:.3}", self.host_milliseconds),
            // Means of bytes are rounded to whole bytes.
            or_empty(self.allocated_bytes, bytes(self.allocated_bytes as u64)),
            or_empty(self.kept_bytes.abs(), format!("{sign}{}", bytes(self.kept_bytes.abs() as u64))),
            or_empty(self.flops, format!("{:.2}", self.flops / 1e9)),
            or_empty(self.flops * rate, percent(reached)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(module: &str, operator: &str, is_call: bool, microseconds: f64, kept: i64) -> OperatorSpan {
        OperatorSpan {
            module: module.to_owned(),
            operator: operator.to_owned(),
            pass: "forward".to_owned(),
            is_call,
            device_microseconds: microseconds,
            host_microseconds: 2.0 * microseconds,
            allocated: 512,
            kept,
            flops: if is_call { 1000 } else { 0 },
            ..OperatorSpan::default()
        }
    }

    #[test]
    fn calls_add_up_by_operator_and_by_module() {
        let spans = [
            span("h.0", "linear", true, 3000.0, 512),
            span("h.1", "linear", true, 1000.0, 512),
            span("h.1", "gelu", true, 500.0, -2048),
            span("", "(forward)", false, 250.0, 0),
        ];
        let profile = OperatorProfile { flops_per_second: 1e6, ..OperatorProfile::new(spans.iter(), 2) };
        let names =
            |by, sort| profile.rows(by, sort).into_iter().map(|row| row.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(By::Operator, Sort::Time), ["linear", "gelu", "(forward)"]);
        assert_eq!(names(By::Operator, Sort::Memory), ["linear", "(forward)", "gelu"]);
        assert_eq!(names(By::Module, Sort::Time), ["h.0", "h.1", "(forward)"]);
        let total = profile.total();
        assert_eq!((total.calls, total.device_milliseconds, total.flops), (1.5, 2.375, 1500.0));
        let table = profile.table(By::Operator, Sort::Time, 1);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[2].starts_with("linear") && lines[2].contains("84.2 %"), "{table}");
        assert!(lines[3].starts_with("2 more") && lines[5].starts_with("total"), "{table}");
        // 1000 FLOPs in 2 ms on a device of 1,000,000 FLOP/s.
        assert!(lines[2].ends_with("50.0 %"), "{table}");
        // No row is beyond the best rate: the 500 FLOPs of gelu take 0.25 ms.
        for (matmuls, best) in [(1e6, 2e6), (4e6, 4e6)] {
            assert_eq!(profile.clone().with_best_rate(matmuls).flops_per_second, best);
        }
    }
}
