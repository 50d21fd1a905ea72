//! The operators of a step by time, memory and FLOPs: `plimsoll profile`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use system::input;

use crate::error::{Result, Unreadable};
use crate::run_files::{atomic_write, to_json};
use crate::table::aligned;
use crate::units::{bytes, percent};

/// Name of the file of a profile in a run directory.
pub const FILE: &str = "profile.json";

/// Largest size of a profile that is read, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// One call of an operator, or a stretch of a phase outside all calls. Figures count what is its own: not
/// those of calls inside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatorSpan {
    /// Path of the module that calls; empty outside calls.
    pub module: String,
    /// The operator, or the phase in parentheses.
    pub operator: String,
    /// Forward, recompute, backward, backward weight, or the phase.
    pub pass: String,
    /// Whether this is a call.
    pub is_call: bool,
    /// Start and end on the device, in microseconds.
    pub begin: f64,
    /// End on the device.
    pub end: f64,
    /// Time on the device's compute stream.
    pub device_microseconds: f64,
    /// Time on the host.
    pub host_microseconds: f64,
    /// Bytes of its allocations.
    pub allocated: u64,
    /// Bytes of its allocations less those that it freed.
    pub kept: i64,
    /// FLOPs of matmuls and attention.
    pub flops: u64,
}

/// The key of the rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// A row for each operator and pass.
    #[default]
    Operator,
    /// A row for each module and pass.
    Module,
}

/// The order of the rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The most time on the device first.
    #[default]
    Time,
    /// The most bytes kept first.
    Memory,
    /// The most bytes allocated first.
    Bytes,
}

/// A row: all calls of an operator, or in a module, in a pass; means of a step, added up over ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatorRow {
    /// The operator or module.
    pub name: String,
    /// The pass.
    pub pass: String,
    /// Calls.
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
    /// Number of ranks, whose figures are added up.
    pub ranks: usize,
    /// Number of measured steps.
    pub steps: u64,
    /// Milliseconds of the median step without measurement.
    pub step_milliseconds: f64,
    /// The highest FLOP/s that a rank reached: of large matmuls in the compute type, or of a row.
    pub flops_per_second: f64,
    /// Rows by operator.
    pub operators: Vec<OperatorRow>,
    /// Rows by module.
    pub modules: Vec<OperatorRow>,
    /// The bytes of a step along each axis with several ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<AxisBytes>,
    /// For how long compute waits for other ranks in a step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
}

/// The bytes of a step along an axis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AxisBytes {
    /// Name of the axis.
    pub axis: String,
    /// Bytes sent by the rank that sends most.
    pub step_bytes_sent: u64,
}

/// The time for which compute waits in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// Name of the phase that waits.
    pub phase: String,
    /// Mean of a step, on the rank that waits most.
    pub milliseconds: f64,
}

impl OperatorProfile {
    /// Adds up the spans of all ranks over `steps` steps. The other fields are empty.
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

    /// Sets the best rate: `flops_per_second`, that of large matmuls, or that of a row that reached more, as
    /// operands in caches may.
    #[must_use]
    pub fn with_best_rate(self, flops_per_second: f64) -> Self {
        let rows = self.operators.iter().chain(&self.modules).map(OperatorRow::flops_per_second);
        let flops_per_second = rows.fold(flops_per_second, f64::max);
        OperatorProfile { flops_per_second, ..self }
    }

    /// The sum of all rows.
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

    /// Returns the rows in an order.
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

    /// Returns the header of a table, and the cells of `rows`.
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

    /// Returns the table of the first `limit` rows, the others in one row, and the total.
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

    /// Returns two lines: the bytes of a step along each axis, and how long compute waits. Empty for one
    /// rank.
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
    /// A file that cannot be read or is none.
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

    /// FLOP/s of a rank, 0 without time on the device.
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
            // Means of bytes are shown as whole bytes.
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
        // 1000 FLOPs in 2 ms of a device that does 1,000,000 a second.
        assert!(lines[2].ends_with("50.0 %"), "{table}");
        // No row is beyond the best rate: the 500 FLOPs of gelu take 0.25 ms.
        for (matmuls, best) in [(1e6, 2e6), (4e6, 4e6)] {
            assert_eq!(profile.clone().with_best_rate(matmuls).flops_per_second, best);
        }
    }
}
