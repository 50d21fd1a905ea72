//! Exchanges between ranks with sharded optimizer state: chunk sums of the norm, and updated weights; of the
//! statistics that running averages are made from; and of arrays that ranks have read in parts.
//!
//! All run on the reduce stream, after the compute work before them. Compute waits for the sums at once, and
//! for weights group by group when it needs them: most travel while the next forward pass computes with those
//! that have arrived ([`Tensor::arrives`]).
//!
//! No rank writes a weight that others still use. A rank sends its parts once its own update is enqueued on
//! the compute stream, behind the step's passes, and receives in the same call, behind its own passes. The
//! next update follows the next sums of gradients, which come after all of this on the same stream.

use std::ops::{Range, RangeBounds};

use collective::{Axis, Collective, GridGroups, PeerRegion, ProcessGroup};
use device::{DType, StreamKind};
use nn::Parameters;
use tensor::Tensor;

use super::assignment::Assignment;
use super::reduction::GradientReduction;
use super::stream_order::between_compute;
use crate::error::{ParallelError, Result};
use crate::shard::Shard;

/// Gives every rank of `group`, the world's, the complete `sums`, of which each element is nonzero on at most
/// one rank.
///
/// 0 + x is x in any order of addition, so the sum is a gather whose parts may lie anywhere and have any
/// length.
pub fn gather_sums(group: &ProcessGroup, sums: &Tensor) -> Result<()> {
    between_compute(sums.device(), || {
        Ok(group
            .run(Collective::AllReduce { region: sums.region(), dtype: DType::F32 }, StreamKind::Reduce)?)
    })
}

/// Gives every rank of `group`, the group of [`Axis::Data`], all rows of `rows [n, ..]`, one for each of the
/// n micro-batches of `assignment`. Each rank has its own.
///
/// # Errors
/// A failed collective; another number of rows.
pub fn gather_rows(group: &ProcessGroup, rows: &Tensor, assignment: &Assignment) -> Result<()> {
    if group.world_size() == 1 {
        return Ok(());
    }
    let row = rows.elements() / assignment.total().max(1);
    let part = |run: Range<usize>| Ok::<_, ParallelError>(rows.view(row * run.start, [row * run.len()])?);
    let rank = group.rank();
    let ranks = group.world_size();
    let own = assignment.runs(rank).map(part).collect::<Result<Vec<_>>>()?;
    if let ([own], true) = (&*own, assignment.is_even()) {
        return between_compute(rows.device(), || {
            Ok(group.run(
                Collective::AllGather { input: own.region(), output: rows.region() },
                StreamKind::Reduce,
            )?)
        });
    }
    let parts = |rank: usize| assignment.runs(rank).map(part).collect::<Result<Vec<_>>>();
    gather_parts(group, &(0..ranks).map(parts).collect::<Result<Vec<_>>>()?)
}

/// Gives every rank all rows of `counts [ranks, width]`, one for each of the ranks along [`Axis::Data`] and
/// [`Axis::Context`], by [`RankGrid::coordinate_over`](collective::RankGrid::coordinate_over) them. Each rank
/// has its own.
pub fn gather_counts(groups: &GridGroups, counts: &Tensor) -> Result<()> {
    let (grid, [ranks, width]) = (groups.grid(), [counts.shape().rows(), counts.shape().columns()]);
    let own = grid.coordinate_over(&[Axis::Data, Axis::Context]);
    let along_data = groups.along(Axis::Data)?;
    // 1 if the group is that of both axes.
    let block = ranks / along_data.world_size();
    let rows = |first: usize, rows: usize| counts.view(first * width, [rows, width]);
    if block > 1 {
        let row = rows(own, 1)?;
        let all = rows(own / block * block, block)?;
        let along_context = groups.along(Axis::Context)?;
        between_compute(counts.device(), || {
            Ok(along_context.run(
                Collective::AllGather { input: row.region(), output: all.region() },
                StreamKind::Reduce,
            )?)
        })?;
    }
    if along_data.world_size() == 1 {
        return Ok(());
    }
    let own = rows(own / block * block, block)?;
    between_compute(counts.device(), || {
        Ok(along_data.run(
            Collective::AllGather { input: own.region(), output: counts.region() },
            StreamKind::Reduce,
        )?)
    })
}

/// Gives every rank of `group` the values of all `parts`, of which there is a list for each rank: those that
/// the rank has. All ranks name the same parts of their own tensors.
pub fn gather_parts(group: &ProcessGroup, parts: &[Vec<Tensor>]) -> Result<()> {
    let Some(device) = parts.iter().flatten().next().map(Tensor::device) else { return Ok(()) };
    let (sends, receives) = regions(parts, group.rank());
    between_compute(device, || Ok(group.run(Collective::Exchange { sends, receives }, StreamKind::Reduce)?))
}

/// [`gather_parts`] over connections that sums use too: each part is broadcast by the rank that has it. Ranks
/// without connections to peers make no new one.
pub fn broadcast_parts(group: &ProcessGroup, parts: &[Vec<Tensor>]) -> Result<()> {
    let Some(device) = parts.iter().flatten().next().map(Tensor::device) else { return Ok(()) };
    between_compute(device, || {
        for (root, parts) in parts.iter().enumerate() {
            for part in parts {
                group.run(Collective::Broadcast { root, region: part.region() }, StreamKind::Reduce)?;
            }
        }
        Ok(())
    })
}

/// Returns what `rank` sends and receives, so that every rank gets the parts of all.
fn regions(parts: &[Vec<Tensor>], rank: usize) -> (Vec<PeerRegion<'_>>, Vec<PeerRegion<'_>>) {
    let own = parts.get(rank).map_or(&[][..], Vec::as_slice);
    let mut sends = Vec::new();
    let mut receives = Vec::new();
    for (peer, theirs) in parts.iter().enumerate().filter(|(peer, _)| *peer != rank) {
        sends.extend(own.iter().map(|part| (peer, part.region())));
        receives.extend(theirs.iter().map(|part| (peer, part.region())));
    }
    (sends, receives)
}

/// Starts to give every rank of `group`, the group of [`Axis::Data`], the parts that other ranks own of some
/// of [`GradientReduction::weight_groups`], after the compute work so far. Later uses of a weight wait for
/// the arrival of its group. Does nothing if every rank owns everything.
pub fn gather_weights(
    group: &ProcessGroup,
    reduction: &GradientReduction,
    parameters: &Parameters,
    weight_groups: impl RangeBounds<usize>,
) -> Result<()> {
    if !reduction.shards().is_sharded() {
        return Ok(());
    }
    let device = parameters.device();
    device.wait(StreamKind::Reduce, &device.record(StreamKind::Compute)?)?;
    let all = reduction.weight_groups().iter().enumerate();
    for (_, weights) in all.filter(|(index, _)| weight_groups.contains(index)) {
        exchange_parts(group, reduction, parameters, weights)?;
        let arrival = device.arrival(StreamKind::Reduce)?;
        for parameter in weights {
            parameters.list()[*parameter].weight.tensor()?.arrives(&arrival);
        }
    }
    Ok(())
}

/// Exchanges the weights of a group in one call of all ranks, including ranks that own none of them.
fn exchange_parts(
    group: &ProcessGroup,
    reduction: &GradientReduction,
    parameters: &Parameters,
    weights: &[usize],
) -> Result<()> {
    let shards = reduction.shards();
    let parts_of = |rank: usize| {
        let owned = weights.iter().map(|parameter| (*parameter, shards.range(rank, *parameter)));
        let owned = owned.filter(|(_, range)| !range.is_empty());
        let part = |(parameter, range): (usize, Range<usize>)| {
            Shard::along(Axis::Data, range).of(&parameters.list()[parameter].weight.tensor()?)
        };
        owned.map(part).collect::<Result<Vec<_>>>()
    };
    let parts = (0..group.world_size()).map(parts_of).collect::<Result<Vec<_>>>()?;
    let (sends, receives) = regions(&parts, group.rank());
    let in_shared_memory = Collective::ExchangeShared { sends: sends.clone(), receives: receives.clone() };
    if !group.try_run(in_shared_memory, StreamKind::Reduce)? {
        group.run(Collective::Exchange { sends, receives }, StreamKind::Reduce)?;
    }
    Ok(())
}
