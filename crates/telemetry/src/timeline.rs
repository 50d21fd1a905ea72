//! Timelines of steps: the work on each rank's streams, in Chrome's trace format, for Perfetto
//! (ui.perfetto.dev). Ranks are processes of the trace; rows are threads.

use std::path::Path;

use collective::ControlChannel;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use system::file_error::FileContext;
use system::output::{OutputFile, Replace};

use crate::error::{Result, TelemetryError};
use crate::operators::OperatorSpan;

system::names! {
    /// The row in which a span is shown.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Row {
        /// Phases of each step, on the compute stream.
        Phases = "phases",
        /// Operators, with their modules and bytes, on the compute stream.
        Operators = "operators",
        /// Kernels, matmuls and copies on the compute stream.
        Compute = "compute",
        /// Work on the reduce stream.
        Reduce = "reduce",
        /// Work on the transfer stream.
        Transfer = "transfer",
        /// Work on the exchange stream.
        Exchange = "exchange",
        /// Copies of micro-batches from the host.
        Input = "input",
        /// Copies of training state to the host.
        Snapshot = "snapshot",
    }
}

/// One piece of work on a stream, with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Row that shows the span.
    pub row: Row,
    /// Name of the work.
    pub name: String,
    /// Category of the work, such as a family of kernels.
    pub category: String,
    /// Start, in microseconds from the start of the first step.
    pub begin: f64,
    /// Duration in microseconds.
    pub length: f64,
    /// Whether compute waited for other ranks during the span.
    pub exposed: bool,
}

/// The timeline of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTimeline {
    /// The rank.
    pub rank: usize,
    /// Name of its host.
    pub host: String,
    /// Spans, in any order.
    pub spans: Vec<Span>,
    /// Operators, if they were timed.
    pub operators: Vec<OperatorSpan>,
    /// Time in microseconds with the bytes in use and reserved.
    pub memory: Vec<(f64, [u64; 2])>,
    /// Bytes sent along each axis with several ranks.
    pub sent: Vec<(String, u64)>,
}

/// Gathers the timelines of all ranks on rank 0, in rank order; returns `None` on the other ranks. Every rank
/// must call it.
///
/// # Errors
/// The control channel fails, or a message is not a timeline.
pub fn gather(control: &mut dyn ControlChannel, own: &RankTimeline) -> Result<Option<Vec<RankTimeline>>> {
    let encoded = serde_json::to_vec(own)
        .map_err(|error| TelemetryError::Encode { rank: own.rank, reason: error.to_string() })?;
    let decode = |(rank, bytes): (usize, &Vec<u8>)| {
        serde_json::from_slice(bytes)
            .map_err(|error| TelemetryError::Decode { rank, reason: error.to_string() })
    };
    let all = control.gather(0, &encoded)?;
    all.map(|all| all.iter().enumerate().map(decode).collect()).transpose()
}

/// Writes the timelines as a trace, atomically.
///
/// # Errors
/// The file cannot be written, or exists and was not written by this program.
pub fn write(path: &Path, ranks: &[RankTimeline]) -> Result<()> {
    let output = OutputFile::new(path, Replace::Marked(MARK));
    let written = output.and_then(|output| output.write(chrome_trace(ranks).as_bytes()));
    Ok(written.context(path, "write it")?)
}

/// Text near the start of every trace. It identifies traces that this program wrote.
pub const MARK: &str = r#""writer":"plimsoll""#;

/// Returns the timelines as a JSON trace. Spans of a row must not overlap; work on one stream never does.
fn chrome_trace(ranks: &[RankTimeline]) -> String {
    let mut events = Vec::new();
    for RankTimeline { rank, host, spans, operators, memory, .. } in ranks {
        let name = |what: &str, row: usize, name: String| {
            let arguments = json!({"name": name});
            json!({"ph": "M", "pid": rank, "tid": row, "name": what, "args": arguments})
        };
        events.push(name("process_name", 0, format!("rank {rank} on {host}")));
        for (number, row) in Row::ALL.into_iter().enumerate() {
            events.push(name("thread_name", number, row.name().to_owned()));
            let order = json!({"sort_index": number});
            events.push(
                json!({"ph": "M", "pid": rank, "tid": number, "name": "thread_sort_index", "args": order}),
            );
            events.extend(spans.iter().filter(|span| span.row == row).map(|span| event(*rank, number, span)));
            let own = operators.iter().filter(|_| row == Row::Operators);
            events.extend(own.map(|operator| operator_event(*rank, number, operator)));
        }
        events.extend(memory.iter().map(|(at, [in_use, reserved])| {
            let bytes = json!({"allocated": in_use, "reserved": reserved});
            json!({"ph": "C", "pid": rank, "name": "memory (bytes)", "ts": at, "args": bytes})
        }));
    }
    // Keys are sorted by name, so the mark comes before the events.
    json!({"displayTimeUnit": "ms", "otherData": {"writer": "plimsoll"}, "traceEvents": events}).to_string()
}

fn event(rank: usize, row: usize, span: &Span) -> Value {
    let Span { name, category, begin, length, exposed, .. } = span;
    let mut event = json!({
        "ph": "X", "pid": rank, "tid": row, "name": name, "cat": category, "ts": begin, "dur": length
    });
    if *exposed {
        event["cname"] = json!("terrible");
        event["args"] = json!({"exposed": true});
    }
    event
}

/// Returns the event of a call, or of an interval of a phase outside calls. Own times exclude nested calls.
fn operator_event(rank: usize, row: usize, span: &OperatorSpan) -> Value {
    let OperatorSpan { module, operator, pass, begin, end, .. } = span;
    json!({
        "ph": "X", "pid": rank, "tid": row, "name": operator, "cat": pass, "ts": begin, "dur": end - begin,
        "args": {
            "module": module,
            "pass": pass,
            "own_device_us": span.device_microseconds,
            "own_host_us": span.host_microseconds,
            "allocated_bytes": span.allocated,
            "kept_bytes": span.kept,
            "flops": span.flops,
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

    use super::*;

    #[test]
    fn a_trace_has_a_process_per_rank_and_marks_exposed_spans() {
        let span = |row, name: &str, begin, exposed| Span {
            row,
            name: name.to_owned(),
            category: "c".to_owned(),
            begin,
            length: 2.5,
            exposed,
        };
        let rank = |rank| RankTimeline {
            rank,
            host: "h".to_owned(),
            spans: vec![span(Row::Reduce, "all-reduce", 1.0, false), span(Row::Phases, "reduce", 4.0, true)],
            operators: vec![OperatorSpan { module: "h.<0>".to_owned(), end: 2.0, ..OperatorSpan::default() }],
            memory: vec![(1.0, [512, 2048])],
            sent: Vec::new(),
        };
        let trace: Value = serde_json::from_str(&chrome_trace(&[rank(0), rank(1)])).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let events_in = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
        assert_eq!(events_in("M").iter().filter(|event| event["args"]["name"] == "rank 1 on h").count(), 1);
        let spans = events_in("X");
        assert_eq!(spans.len(), 6);
        assert!(spans.iter().any(|span| span["tid"] == 1 && span["args"]["module"] == "h.<0>"));
        assert!(events_in("C").iter().all(|point| point["args"]["reserved"] == 2048));
        let exposed: Vec<_> = spans.iter().filter(|span| span["args"]["exposed"] == true).collect();
        assert_eq!(exposed.len(), 2);
        assert!(exposed.iter().all(|span| span["tid"] == 0 && span["ts"] == 4.0 && span["dur"] == 2.5));
        assert!(
            spans.iter().any(|span| span["tid"] == 3 && span["pid"] == 1 && span["name"] == "all-reduce")
        );
    }
}
