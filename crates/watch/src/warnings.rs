//! Warnings about a run: uneven ranks, growing memory, throttling, silent ranks, and nearly full memory.

use std::time::Duration;

use telemetry::status::State as RankState;
use telemetry::units::{bytes, grouped, percent, ranges};
use telemetry::{Phase, RankStep};

use crate::run_view::{RunView, State};

/// Relative difference in compute time between the slowest and fastest rank from which on it is reported.
const IMBALANCE: f64 = 0.05;
/// Minimum difference that is reported, in microseconds per step.
const NOTICEABLE: u64 = 1000;
/// Number of consecutive records with growing memory after which growth is reported.
const GROWING: usize = 4;
/// Fraction of the capacity from which on a device is nearly full.
const FULL: f64 = 0.97;
/// Silence of a rank after which it is reported, if steps take less time.
const SILENCE: Duration = Duration::from_secs(30);

pub(crate) fn warnings(run: &RunView) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(run.slowdown());
    all.extend(imbalance(run));
    all.extend(growth(run));
    all.extend(throttled(run));
    all.extend(full(run));
    all.extend(silent(run));
    let last = run.points.last().filter(|point| point.loss.is_none());
    all.extend(last.map(|point| format!("the loss of step {} is not finite", grouped(point.step))));
    all.extend(run.findings.iter().cloned());
    all
}

/// Returns the microseconds per step in which a rank does not wait for others.
fn computing(record: &RankStep) -> Option<u64> {
    let own = Phase::ALL.into_iter().filter(|phase| !phase.waits());
    let times = own.filter_map(|phase| record.phases.get(phase.name())?.microseconds);
    Some(times.sum()).filter(|sum| *sum > 0)
}

fn imbalance(run: &RunView) -> Option<String> {
    let timed = || run.ranks().filter_map(|record| Some((computing(record)?, record.rank)));
    let slowest = timed().max_by_key(|timed| timed.0)?;
    let fastest = timed().min_by_key(|timed| timed.0)?;
    let apart = slowest.0 - fastest.0;
    let share = apart as f64 / fastest.0 as f64;
    (share > IMBALANCE && apart >= NOTICEABLE).then(|| {
        let (rank, other) = (slowest.1, fastest.1);
        format!("rank {rank} computes {} longer than rank {other}, which waits for it", percent(share))
    })
}

fn growth(run: &RunView) -> impl Iterator<Item = String> + '_ {
    run.records.iter().filter_map(|(rank, records)| {
        let latest: Vec<_> = records.iter().rev().take(GROWING).rev().collect();
        let grows = latest.windows(2).all(|pair| pair[0].1.allocated_bytes < pair[1].1.allocated_bytes);
        let ((first, least), (last, most)) = (latest.first()?, latest.last()?);
        (latest.len() == GROWING && grows).then(|| {
            let per_step = (most.allocated_bytes - least.allocated_bytes) / (last - first).max(1);
            format!("rank {rank} holds {} more after every step since step {first}", bytes(per_step))
        })
    })
}

fn throttled(run: &RunView) -> impl Iterator<Item = String> + '_ {
    run.ranks().filter_map(|record| {
        let gpu = record.gpu.as_ref().filter(|gpu| !gpu.throttled.is_empty())?;
        let clock = gpu.clock_mhz.map_or(String::new(), |clock| format!(" to {clock} MHz"));
        Some(format!("the GPU of rank {} is throttled{clock}: {}", record.rank, gpu.throttled.join(", ")))
    })
}

fn full(run: &RunView) -> Option<String> {
    let is_full = |record: &&RankStep| record.reserved_bytes as f64 >= FULL * record.capacity_bytes as f64;
    let ranks: Vec<usize> = run.ranks().filter(is_full).map(|record| record.rank).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    let listed = ranges(ranks.iter().copied());
    (!ranks.is_empty()).then(|| format!("memory is nearly full on {noun} {listed}"))
}

fn silent(run: &RunView) -> Option<String> {
    if run.state != State::Running {
        return None;
    }
    let step = run.last.as_ref().and_then(|last| last.seconds).unwrap_or(0.0);
    let patience = SILENCE.max(Duration::try_from_secs_f64(3.0 * step).unwrap_or(SILENCE));
    let running = run.statuses.iter().flatten().filter(|record| record.state == RankState::Running);
    let longest = running.max_by_key(|record| record.age()).filter(|record| record.age() > patience)?;
    let rank = longest.rank;
    let seconds = longest.age().as_secs();
    Some(format!("nothing was received from rank {rank} for {} s", grouped(seconds)))
}
