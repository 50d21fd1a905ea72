//! The error report for a micro-batch whose runs differ.

use collective::{Axis, RankGrid};
use telemetry::hashes::{HashedArray, Section};

use super::runs::{RankRuns, Round, VerificationRun, VerifiedArray};
use crate::error::Result;

/// A run of a micro-batch on the ranks of one replica.
struct ReplicaRun<'a> {
    /// Arrays in the order of computation, each with the rank that computed it.
    arrays: Vec<(usize, &'a VerifiedArray)>,
}

/// One array's hash in every run, with the rank that computed it.
struct Compared<'a> {
    array: &'a HashedArray,
    hashes: [(usize, u64); 3],
}

/// Describes the first result that differs between the runs of a micro-batch, and the result of a third run.
/// `all` are the runs of all ranks.
pub(crate) fn report(grid: &RankGrid, round: &Round, all: &[RankRuns]) -> Result<String> {
    let replicas = grid.size(Axis::Data);
    let mut differing = Vec::new();
    for source in 0..replicas {
        differing.extend(first_difference(grid, round, source, all)?);
    }
    let culprit = culprit(&differing);
    // The pair that shows most of the culprit's fault: the first in the order of computation.
    differing.sort_by_key(|compared| (compared.array.section, compared.array.micro_batch));
    let lines: Vec<_> = differing.iter().map(|compared| describe(compared, all)).collect();
    let verdict = match culprit {
        Some(rank) => format!("; {} computes wrongly", who(rank, all)),
        None => String::new(),
    };
    Ok(format!("{}{verdict}", lines.join("; ")))
}

/// Returns the rank that disagrees with the other two in every difference; `None` if there is no single such
/// rank.
fn culprit(differing: &[Compared<'_>]) -> Option<usize> {
    let mut minorities = differing.iter().map(|Compared { hashes: [step, repetition, third], .. }| {
        let ranks_differ = step.0 != repetition.0 && step.0 != third.0 && repetition.0 != third.0;
        match (step.1 == third.1, repetition.1 == third.1) {
            (true, false) if ranks_differ => Some(repetition.0),
            (false, true) if ranks_differ => Some(step.0),
            // The same rank has two results.
            _ if step.0 == repetition.0 => Some(step.0),
            (false, _) if step.0 == third.0 => Some(step.0),
            _ => None,
        }
    });
    let first = minorities.next()??;
    minorities.all(|rank| rank == Some(first)).then_some(first)
}

/// Returns the first array that differs between step and repetition, for the micro-batch of replica `source`.
fn first_difference<'a>(
    grid: &RankGrid,
    round: &Round,
    source: usize,
    all: &'a [RankRuns],
) -> Result<Option<Compared<'a>>> {
    let [step, repetition, third] = [
        replica_run(grid, round, (source, VerificationRun::Step), all)?,
        replica_run(grid, round, (source, VerificationRun::Repetition), all)?,
        replica_run(grid, round, (source, VerificationRun::Third), all)?,
    ];
    let runs = step.arrays.iter().zip(&repetition.arrays).zip(&third.arrays);
    let compared = |((step, repetition), third): ((&(usize, &'a VerifiedArray), &(_, _)), &(_, _))| {
        let rank_hash = |(rank, array): &(usize, &VerifiedArray)| (*rank, array.hash);
        Compared { array: &step.1.array, hashes: [rank_hash(step), rank_hash(repetition), rank_hash(third)] }
    };
    Ok(runs.map(compared).find(|Compared { hashes: [step, repetition, _], .. }| step.1 != repetition.1))
}

/// Returns a run of the micro-batch of replica `source`.
fn replica_run<'a>(
    grid: &RankGrid,
    round: &Round,
    (source, run): (usize, VerificationRun),
    all: &'a [RankRuns],
) -> Result<ReplicaRun<'a>> {
    let computer = round.computer(source, run);
    let mut arrays = Vec::new();
    for (rank, runs) in all.iter().enumerate() {
        if grid.seen_from(rank)?.coordinate(Axis::Data) == computer {
            arrays.extend(runs.runs[run as usize].iter().map(|array| (rank, array)));
        }
    }
    // Ranks that divide a layer compute the same array in parts.
    arrays.sort_by_key(|(rank, array)| (array.order, *rank));
    Ok(ReplicaRun { arrays })
}

fn describe(
    Compared { array, hashes: [step, repetition, third] }: &Compared<'_>,
    all: &[RankRuns],
) -> String {
    let agreement = match (third.1 == step.1, third.1 == repetition.1) {
        (true, _) => "agrees with the step's",
        (_, true) => "agrees with the repetition",
        _ => "agrees with neither",
    };
    format!(
        "{}: {} in the step and {} in a repetition differ first there ({:016x} and {:016x}); a third run on {} \
         {agreement}",
        in_words(array),
        who(step.0, all),
        who(repetition.0, all),
        step.1,
        repetition.1,
        who(third.0, all),
    )
}

/// Formats a rank with its host and device.
fn who(rank: usize, all: &[RankRuns]) -> String {
    match all.get(rank) {
        Some(RankRuns { host, device, .. }) => format!("rank {rank} ({host}, {device})"),
        None => format!("rank {rank}"),
    }
}

/// Describes an array: its section, module, operator and micro-batch.
pub(super) fn in_words(array: &HashedArray) -> String {
    match (array.section, array.micro_batch) {
        (Section::Gradients, Some(number)) => {
            format!("backward: the gradient of `{}`, micro-batch {number}", array.array)
        }
        _ => array.to_string(),
    }
}
