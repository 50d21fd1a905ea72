//! A timeline of two steps of every rank, which shows overlap between steps. These steps run after the timed
//! ones, because events surround their calls.

use std::path::Path;

use collective::Communicator;
use device::StreamKind;
use telemetry::host_name;
use telemetry::timeline::{self, RankTimeline, Row, Span, gather};

use crate::error::Result;
use crate::steps::control;
use worker::Worker;

/// Runs `step` and the next step on all ranks, or on all worlds `beside` each other, and the first writes
/// their work to `file`. They begin together, to the precision of a message between hosts. Errors: those of a
/// step; writing the file.
pub(super) fn write(
    worker: &mut Worker,
    beside: &mut Option<Communicator>,
    step: u64,
    file: &Path,
) -> Result<()> {
    worker.phases().keep()?;
    control(worker, beside).barrier()?;
    let zero = worker.device().mark()?;
    worker.device().begin_profile();
    worker.step(step)?;
    worker.step(step + 1)?;
    let calls = worker.device().end_profile()?;
    let mut spans: Vec<Span> = calls
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
        let (begin, end) = (1e6 * begin.as_secs_f64(), 1e6 * end.as_secs_f64());
        let name = if exposed { format!("{}, exposed", phase.name()) } else { phase.name().to_owned() };
        let category = "phase".to_owned();
        spans.push(Span { row: Row::Phases, name, category, begin, length: end - begin, exposed });
    }
    let control = control(worker, beside);
    let own = RankTimeline { rank: control.rank(), host: host_name(), spans };
    if let Some(ranks) = gather(control, &own)? {
        timeline::write(file, &ranks)?;
    }
    Ok(())
}

fn row(stream: StreamKind) -> Row {
    match stream {
        StreamKind::Compute => Row::Compute,
        StreamKind::Reduce => Row::Reduce,
        StreamKind::Transfer => Row::Transfer,
    }
}
