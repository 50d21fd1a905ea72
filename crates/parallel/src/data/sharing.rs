//! What ranks that keep different parts give each other in a step: sums for the norm, and new weights.
//!
//! Both go over the stream of the reduction, after the compute work before them. Compute waits for the sums
//! at once, and for weights when it comes to them, group by group: most of them travel while the next forward
//! pass, or whatever else is next, computes with those that are there ([`Tensor::arrives`]).
//!
//! Nobody writes to a weight that others still compute with. A rank begins to give its parts when its own
//! update is enqueued on compute, behind the step's passes; and a rank that receives, over any transport,
//! takes part in the call, which comes after its own passes in the same way. The next update comes after the
//! next sums of gradients, which are behind all of this on the same stream.

use std::ops::RangeBounds;

use collective::DataPlane;
use device::{DType, Device, StreamKind};
use nn::Parameters;
use tensor::Tensor;

use super::reduction::GradientReduction;
use super::shards::Piece;
use crate::error::Result;

/// Gives every rank all of `sums`, of which each element is 0 on all ranks but one.
///
/// Whatever order a transport adds in, 0 + x is x, so this is a gather whose parts may be anywhere and of any
/// length.
pub fn gather_sums(plane: &mut dyn DataPlane, sums: &Tensor) -> Result<()> {
    between_compute(sums.device(), || Ok(plane.all_reduce(sums.region(), DType::F32, StreamKind::Reduce)?))
}

/// Begins to give every rank the parts that the others keep of some of [`GradientReduction::weight_groups`],
/// after the compute work so far. What touches a weight waits for its group to arrive. Nothing to do where
/// nothing is divided.
pub fn gather_weights(
    plane: &mut dyn DataPlane,
    reduction: &GradientReduction,
    parameters: &Parameters,
    groups: impl RangeBounds<usize>,
) -> Result<()> {
    if !reduction.shards().is_divided() {
        return Ok(());
    }
    let device = parameters.device();
    device.wait(StreamKind::Reduce, &device.record(StreamKind::Compute)?)?;
    let all = reduction.weight_groups().iter().enumerate();
    for (_, group) in all.filter(|(index, _)| groups.contains(index)) {
        exchange_parts(plane, reduction, parameters, group)?;
        let arrival = device.arrival(StreamKind::Reduce)?;
        group.iter().for_each(|parameter| parameters.list()[*parameter].tensor.arrives(&arrival));
    }
    Ok(())
}

/// One call, of all ranks, for the weights of a group: also of a rank that has none of them to give.
fn exchange_parts(
    plane: &mut dyn DataPlane,
    reduction: &GradientReduction,
    parameters: &Parameters,
    group: &[usize],
) -> Result<()> {
    let shards = reduction.shards();
    let parts_of = |rank: usize| {
        let pieces = group
            .iter()
            .map(move |parameter| Piece { parameter: *parameter, elements: shards.part(rank, *parameter) });
        let pieces = pieces.filter(|piece| !piece.elements.is_empty());
        let parts = pieces.map(|piece| piece.of(&parameters.list()[piece.parameter].tensor));
        parts.collect::<Result<Vec<_>>>()
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

/// Runs what `enqueue` puts on the reduction's stream after the compute work so far and before that which
/// follows.
pub(crate) fn between_compute(device: &Device, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
    device.wait(StreamKind::Reduce, &device.record(StreamKind::Compute)?)?;
    enqueue()?;
    device.wait(StreamKind::Compute, &device.record(StreamKind::Reduce)?)?;
    Ok(())
}
