//! Exchanges of values that are sharded over ranks: chunk sums of the gradient norm, updated weights,
//! statistics for running averages, and arrays read in parts.
//!
//! All exchanges run on the reduce stream, after the compute work enqueued before them. Compute waits for
//! sums at once, but for weights group by group: most weights travel while the next forward pass computes
//! with those that have arrived ([`Tensor::arrives`]).
//!
//! No rank overwrites a weight that another rank still uses. A rank sends its shards once its own update is
//! enqueued on the compute stream, after the step's passes. It receives in the same call, after its own
//! passes. The next update follows the next gradient sums, which come later on the same stream.

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

/// Completes `sums` on every rank of `group`, the world's group. At most one rank may hold a nonzero value of
/// each element.
///
/// Adding zeros is exact in any order, so an all-reduce serves as a gather of parts at any offsets and of any
/// lengths.
pub fn gather_sums(group: &ProcessGroup, sums: &Tensor) -> Result<()> {
    between_compute(sums.device(), || {
        Ok(group
            .run(Collective::AllReduce { region: sums.region(), dtype: DType::F32 }, StreamKind::Reduce)?)
    })
}

/// Gathers `rows [n, ..]` on every rank of `group`, the group of [`Axis::Data`]: one row for each of the n
/// micro-batches of `assignment`. Each rank provides the rows of its own micro-batches.
///
/// # Errors
/// A collective failed, or the number of rows is wrong.
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

/// Gathers `counts [ranks, width]` on every rank: one row for each rank along [`Axis::Data`] and
/// [`Axis::Context`], indexed by [`RankGrid::coordinate_over`](collective::RankGrid::coordinate_over) these
/// axes. Each rank provides its own row.
pub fn gather_counts(groups: &GridGroups, counts: &Tensor) -> Result<()> {
    let grid = groups.grid();
    let [ranks, width] = [counts.shape().rows(), counts.shape().columns()];
    let own = grid.coordinate_over(&[Axis::Data, Axis::Context]);
    let along_data = groups.along(Axis::Data)?;
    // 1 if the group spans both axes.
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

/// Gathers tensors on every rank of `group`. `parts` lists, for each rank, the tensors whose values it
/// provides; all ranks pass corresponding tensors of their own.
pub fn gather_parts(group: &ProcessGroup, parts: &[Vec<Tensor>]) -> Result<()> {
    let Some(device) = parts.iter().flatten().next().map(Tensor::device) else { return Ok(()) };
    let (sends, receives) = regions(parts, group.rank());
    between_compute(device, || Ok(group.run(Collective::Exchange { sends, receives }, StreamKind::Reduce)?))
}

/// Does the same as [`gather_parts`] by broadcasts, over connections that sums use anyway, so that ranks
/// connect to no new peers.
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

/// Returns the sends and receives of `rank` that give every rank all parts.
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

/// Starts gathering updated weights over `group`, the group of [`Axis::Data`], after the compute work
/// enqueued so far. `weight_groups` selects from [`GradientReduction::weight_groups`]. Later uses of a weight
/// wait for its group's arrival. Does nothing if optimizer state is not sharded.
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
            Shard::along(Axis::Data, range).slice(&parameters.list()[parameter].weight.tensor()?)
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
