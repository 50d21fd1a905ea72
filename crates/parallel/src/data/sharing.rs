//! What ranks that keep different parts give each other in a step: sums for the norm, and new weights.
//!
//! Both go over the stream of the reduction, between events: compute work before is done when they begin, and compute
//! work after begins when they are done.

use collective::DataPlane;
use device::{DType, Device, StreamKind};
use nn::Parameters;
use tensor::Tensor;

use super::shards::{Piece, Shards};
use crate::error::Result;

/// Gives every rank all of `sums`, of which each element is 0 on all ranks but one.
///
/// Whatever order a transport adds in, 0 + x is x, so this is a gather whose parts may be anywhere and of any length.
pub fn gather_sums(plane: &mut dyn DataPlane, sums: &Tensor) -> Result<()> {
    between_compute(sums.device(), || Ok(plane.all_reduce(sums.region(), DType::F32, StreamKind::Reduce)?))
}

/// Gives every rank the parts of the weights that the others keep. Nothing to do where nothing is divided.
pub fn gather_weights(plane: &mut dyn DataPlane, shards: &Shards, parameters: &Parameters) -> Result<()> {
    if !shards.is_divided() {
        return Ok(());
    }
    let part = |piece: &Piece| piece.of(&parameters.list()[piece.parameter].tensor);
    let rank = plane.rank();
    let peers = || (0..plane.world_size()).filter(|peer| *peer != rank);
    let mut outgoing = Vec::new();
    for piece in shards.own() {
        let part = part(piece)?;
        outgoing.extend(peers().map(|peer| (peer, part.clone())));
    }
    let mut incoming = Vec::new();
    for peer in peers() {
        for piece in &shards.by_rank()[peer] {
            incoming.push((peer, part(piece)?));
        }
    }
    let sends: Vec<_> = outgoing.iter().map(|(peer, part)| (*peer, part.region())).collect();
    let receives: Vec<_> = incoming.iter().map(|(peer, part)| (*peer, part.region())).collect();
    between_compute(parameters.device(), || {
        if !plane.exchange_shared(&sends, &receives, StreamKind::Reduce)? {
            plane.exchange(&sends, &receives, StreamKind::Reduce)?;
        }
        Ok(())
    })
}

/// Runs what `enqueue` puts on the reduction's stream after the compute work so far and before that which follows.
pub(crate) fn between_compute(device: &Device, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
    device.wait(StreamKind::Reduce, &device.record(StreamKind::Compute)?)?;
    enqueue()?;
    device.wait(StreamKind::Compute, &device.record(StreamKind::Reduce)?)?;
    Ok(())
}
