//! Exchanges between ranks with sharded optimizer state: chunk sums of the norm, and updated weights; and of
//! the statistics that running averages are made from.
//!
//! Both run on the reduce stream, after the compute work before them. Compute waits for the sums at once, and
//! for weights group by group when it needs them: most travel while the next forward pass computes with those
//! that have arrived ([`Tensor::arrives`]).
//!
//! No rank writes a weight that others still use. A rank sends its parts once its own update is enqueued on
//! the compute stream, behind the step's passes, and receives in the same call, behind its own passes. The
//! next update follows the next sums of gradients, which come after all of this on the same stream.

use std::ops::{Range, RangeBounds};

use collective::{Axis, DataPlane};
use device::{DType, StreamKind};
use nn::Parameters;
use tensor::Tensor;

use super::assignment::Assignment;
use super::reduction::GradientReduction;
use super::stream_order::between_compute;
use crate::error::{ParallelError, Result};
use crate::shard::Shard;

/// Gives every rank of `plane`, the world's, the complete `sums`, of which each element is nonzero on at most
/// one rank.
///
/// 0 + x is x in any order of addition, so the sum is a gather whose parts may lie anywhere and have any
/// length.
///
/// # Errors
/// A failed collective.
pub fn gather_sums(plane: &mut dyn DataPlane, sums: &Tensor) -> Result<()> {
    between_compute(sums.device(), || Ok(plane.all_reduce(sums.region(), DType::F32, StreamKind::Reduce)?))
}

/// Gives every rank of `plane`, the plane of [`Axis::Data`], all rows of `rows [n, ..]`, one for each of the
/// n micro-batches of `assignment`. Each rank has its own.
///
/// # Errors
/// A failed collective; another number of rows.
pub fn gather_rows(plane: &mut dyn DataPlane, rows: &Tensor, assignment: &Assignment) -> Result<()> {
    if plane.world_size() == 1 {
        return Ok(());
    }
    let row = rows.elements() / assignment.total().max(1);
    let part = |run: Range<usize>| Ok::<_, ParallelError>(rows.view(row * run.start, [row * run.len()])?);
    let (rank, ranks) = (plane.rank(), plane.world_size());
    let own = assignment.runs(rank).map(part).collect::<Result<Vec<_>>>()?;
    if let ([own], true) = (&*own, assignment.is_even()) {
        return between_compute(rows.device(), || {
            Ok(plane.all_gather(own.region(), rows.region(), StreamKind::Reduce)?)
        });
    }
    let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
    for peer in (0..ranks).filter(|peer| *peer != rank) {
        outgoing.extend(own.iter().map(|part| (peer, part)));
        for run in assignment.runs(peer) {
            incoming.push((peer, part(run)?));
        }
    }
    let sends: Vec<_> = outgoing.iter().map(|(peer, part)| (*peer, part.region())).collect();
    let receives: Vec<_> = incoming.iter().map(|(peer, part)| (*peer, part.region())).collect();
    between_compute(rows.device(), || Ok(plane.exchange(&sends, &receives, StreamKind::Reduce)?))
}

/// Starts to give every rank of `plane`, the plane of [`Axis::Data`], the parts that other ranks own of some
/// of [`GradientReduction::weight_groups`], after the compute work so far. Later uses of a weight wait for
/// the arrival of its group. Does nothing if every rank owns everything.
///
/// # Errors
/// A failed collective.
pub fn gather_weights(
    plane: &mut dyn DataPlane,
    reduction: &GradientReduction,
    parameters: &Parameters,
    groups: impl RangeBounds<usize>,
) -> Result<()> {
    if !reduction.shards().is_sharded() {
        return Ok(());
    }
    let device = parameters.device();
    device.wait(StreamKind::Reduce, &device.record(StreamKind::Compute)?)?;
    let all = reduction.weight_groups().iter().enumerate();
    for (_, group) in all.filter(|(index, _)| groups.contains(index)) {
        exchange_parts(plane, reduction, parameters, group)?;
        let arrival = device.arrival(StreamKind::Reduce)?;
        for parameter in group {
            parameters.list()[*parameter].weight.tensor()?.arrives(&arrival);
        }
    }
    Ok(())
}

/// Exchanges the weights of a group in one call of all ranks, including ranks that own none of them.
fn exchange_parts(
    plane: &mut dyn DataPlane,
    reduction: &GradientReduction,
    parameters: &Parameters,
    group: &[usize],
) -> Result<()> {
    let shards = reduction.shards();
    let parts_of = |rank: usize| {
        let owned = group.iter().map(|parameter| (*parameter, shards.range(rank, *parameter)));
        let owned = owned.filter(|(_, range)| !range.is_empty());
        let part = |(parameter, range): (usize, Range<usize>)| {
            Shard::along(Axis::Data, range).of(&parameters.list()[parameter].weight.tensor()?)
        };
        owned.map(part).collect::<Result<Vec<_>>>()
    };
    let rank = plane.rank();
    let own = parts_of(rank)?;
    let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
    for peer in (0..plane.world_size()).filter(|peer| *peer != rank) {
        outgoing.extend(own.iter().map(|part| (peer, part.clone())));
        incoming.extend(parts_of(peer)?.into_iter().map(|part| (peer, part)));
    }
    let sends: Vec<_> = outgoing.iter().map(|(peer, part)| (*peer, part.region())).collect();
    let receives: Vec<_> = incoming.iter().map(|(peer, part)| (*peer, part.region())).collect();
    if !plane.exchange_shared(&sends, &receives, StreamKind::Reduce)? {
        plane.exchange(&sends, &receives, StreamKind::Reduce)?;
    }
    Ok(())
}
