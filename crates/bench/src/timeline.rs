//! Records timelines of a few steps on every rank: operators, phases and work on streams, with overlap
//! between steps. These steps run after the timed ones, because recording adds events around calls.

use std::path::Path;

use collective::{Axis, Communicator};
use device::StreamKind;
use telemetry::timeline::{self, RankTimeline, Row, Span, gather};
use telemetry::{Phase, host_name};

use crate::error::Result;
use crate::steps::control;
use worker::Worker;

/// Number of steps in a benchmark's timeline.
const STEPS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Operators,
    /// Also records every kernel, matmul and copy with its own events.
    Kernels,
}

/// Runs `step` and the next step on all ranks, or on all worlds `beside` each other. The first rank writes
/// their timelines to `file`.
///
/// # Errors
/// A step fails, or the file cannot be written.
pub(super) fn write(
    worker: &mut Worker,
    beside: &mut Option<Communicator>,
    step: u64,
    file: &Path,
) -> Result<()> {
    let own = record(worker, beside, (step, STEPS), Detail::Kernels)?;
    if let Some(ranks) = gather(control(worker, beside), &own)? {
        timeline::write(file, &ranks)?;
    }
    Ok(())
}

/// Runs `count` steps from step `first` on. Returns this rank's timeline. All ranks begin together, up to the
/// latency of a message.
pub(super) fn record(
    worker: &mut Worker,
    beside: &mut Option<Communicator>,
    (first, count): (u64, u64),
    detail: Detail,
) -> Result<RankTimeline> {
    worker.phases().keep()?;
    control(worker, beside).barrier()?;
    let zero = worker.device().mark()?;
    if detail == Detail::Kernels {
        worker.device().begin_profile();
    }
    let timer = worker.time_operators();
    let before = worker.traffic_by_axis();
    for step in first..first + count {
        worker.step(step)?;
    }
    worker.end_timing();
    let traffic = worker.traffic_by_axis() - before;
    let grid = worker.grid().shape();
    let along = |axis: Axis| (axis.name().to_owned(), traffic.along(axis).bytes_sent);
    let sent = Axis::ALL.into_iter().filter(|axis| grid.size(*axis) > 1).map(along).collect();
    let (operators, memory) = timer.take(&zero)?;
    let mut spans: Vec<Span> = worker
        .device()
        .end_profile()?
        .iter()
        .map(|call| Span {
            row: row(call.stream),
            name: call.name.to_owned(),
            category: call.family.to_owned(),
            begin: 1e3 * f64::from(call.begin_milliseconds),
            length: 1e3 * f64::from(call.milliseconds),
            exposed: false,
        })
        .collect();
    for (phase, begin, end) in worker.phases().spans(&zero)? {
        let exposed = phase.waits() && worker.grid().world_size() > 1;
        let begin = 1e6 * begin.as_secs_f64();
        let end = 1e6 * end.as_secs_f64();
        let name = if exposed { exposed_name(phase) } else { phase.name().to_owned() };
        let category = "phase".to_owned();
        spans.push(Span { row: Row::Phases, name, category, begin, length: end - begin, exposed });
    }
    let rank = control(worker, beside).rank();
    Ok(RankTimeline { rank, host: host_name(), spans, operators, memory, sent })
}

/// Returns the name of the spans in which compute waits for other ranks in a phase.
pub(super) fn exposed_name(phase: Phase) -> String {
    format!("{}, exposed", phase.name())
}

fn row(stream: StreamKind) -> Row {
    match stream {
        StreamKind::Compute => Row::Compute,
        StreamKind::Reduce => Row::Reduce,
        StreamKind::Transfer => Row::Transfer,
        StreamKind::Exchange => Row::Exchange,
        StreamKind::Input => Row::Input,
        StreamKind::Snapshot => Row::Snapshot,
    }
}
