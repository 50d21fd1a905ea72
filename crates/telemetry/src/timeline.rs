//! Steps as a timeline: what each rank's streams did and when, in the trace format of Chrome, which Perfetto
//! (ui.perfetto.dev) shows. A rank is a process there, and a row a thread.

use collective::ControlPlane;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Result, TelemetryError};

/// Where a span is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Row {
    /// The phases of each step, as the compute stream goes through them.
    Phases,
    /// Kernels, matmuls and copies of the compute stream.
    Compute,
    /// The reduction's stream.
    Reduce,
    /// Transfers' stream.
    Transfer,
}

impl Row {
    const ALL: [Row; 4] = [Row::Phases, Row::Compute, Row::Reduce, Row::Transfer];

    const fn name(self) -> &'static str {
        match self {
            Row::Phases => "phases",
            Row::Compute => "compute",
            Row::Reduce => "reduce",
            Row::Transfer => "transfer",
        }
    }
}

/// Something that lasted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Where it is drawn.
    pub row: Row,
    /// What it was.
    pub name: String,
    /// What it was of, such as a family of kernels.
    pub category: String,
    /// Microseconds from the first step's start to its own.
    pub begin: f64,
    /// Microseconds.
    pub length: f64,
    /// Whether computing waited for other ranks meanwhile.
    pub exposed: bool,
}

/// What one rank did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTimeline {
    /// Its number.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// In any order.
    pub spans: Vec<Span>,
}

/// Every rank's timeline on rank 0, in rank order; `None` elsewhere. All ranks call it. Errors: the control plane's; what a
/// rank sent is none.
pub fn gather(control: &mut dyn ControlPlane, own: &RankTimeline) -> Result<Option<Vec<RankTimeline>>> {
    let encoded = serde_json::to_vec(own)
        .map_err(|error| TelemetryError::Encode { rank: own.rank, reason: error.to_string() })?;
    let decode = |(rank, bytes): (usize, &Vec<u8>)| {
        serde_json::from_slice(bytes)
            .map_err(|error| TelemetryError::Decode { rank, reason: error.to_string() })
    };
    let all = control.gather(0, &encoded)?;
    all.map(|all| all.iter().enumerate().map(decode).collect()).transpose()
}

/// The trace as JSON. Spans of a row may not overlap, which holds for what one stream does.
pub fn chrome_trace(ranks: &[RankTimeline]) -> String {
    let mut events = Vec::new();
    for RankTimeline { rank, host, spans } in ranks {
        let name = |what: &str, row: usize, name: String| json!({"ph": "M", "pid": rank, "tid": row, "name": what, "args": {"name": name}});
        events.push(name("process_name", 0, format!("rank {rank} on {host}")));
        for (number, row) in Row::ALL.into_iter().enumerate() {
            events.push(name("thread_name", number, row.name().to_owned()));
            events.push(json!({"ph": "M", "pid": rank, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}));
            events.extend(spans.iter().filter(|span| span.row == row).map(|span| event(*rank, number, span)));
        }
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
}

fn event(rank: usize, row: usize, span: &Span) -> Value {
    let Span { name, category, begin, length, exposed, .. } = span;
    let mut event = json!({"ph": "X", "pid": rank, "tid": row, "name": name, "cat": category, "ts": begin, "dur": length});
    if *exposed {
        event["cname"] = json!("terrible");
        event["args"] = json!({"exposed": true});
    }
    event
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

    use super::*;

    #[test]
    fn a_trace_has_a_process_for_each_rank_and_marks_what_is_exposed() {
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
        };
        let trace: Value = serde_json::from_str(&chrome_trace(&[rank(0), rank(1)])).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
        assert_eq!(of("M").iter().filter(|event| event["args"]["name"] == "rank 1 on h").count(), 1);
        let spans = of("X");
        assert_eq!(spans.len(), 4);
        let exposed: Vec<_> = spans.iter().filter(|span| span["args"]["exposed"] == true).collect();
        assert_eq!(exposed.len(), 2);
        assert!(exposed.iter().all(|span| span["tid"] == 0 && span["ts"] == 4.0 && span["dur"] == 2.5));
        assert!(
            spans.iter().any(|span| span["tid"] == 2 && span["pid"] == 1 && span["name"] == "all-reduce")
        );
    }
}
