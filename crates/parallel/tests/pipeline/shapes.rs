//! The schedules over which the tests iterate.

use parallel::pipeline::{Schedule, ScheduleKind, Shape};

pub(crate) fn schedule(kind: ScheduleKind, ranks: usize, chunks: usize, micro_batches: usize) -> Schedule {
    Schedule::new(kind, Shape { ranks, chunks, micro_batches }).unwrap()
}

/// Returns schedules of every kind with 1 to 8 ranks, 1 to 24 micro-batches and 1 to 4 chunks, as far as the
/// kind allows.
pub(crate) fn every() -> impl Iterator<Item = Schedule> {
    ScheduleKind::ALL.into_iter().flat_map(of_kind)
}

pub(crate) fn of_kind(kind: ScheduleKind) -> impl Iterator<Item = Schedule> {
    let interleaved = kind == ScheduleKind::Interleaved;
    let shapes = (1..=8).flat_map(move |ranks| {
        (1..=if interleaved { 4 } else { 1 })
            .flat_map(move |chunks| (1..=24).map(move |m| (ranks, chunks, m)))
    });
    let shapes = shapes.filter(move |(ranks, _, m)| !interleaved || m % ranks == 0);
    shapes.map(move |(ranks, chunks, m)| schedule(kind, ranks, chunks, m))
}
