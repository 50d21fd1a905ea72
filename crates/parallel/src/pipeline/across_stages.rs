//! Exchanges between pipeline stages after backward and before the update: gradients of tied weights, and the
//! loss.
//!
//! Both run on the reduce stream between events: they start after the compute work before them, and later
//! compute work starts after them.

use collective::{Axis, Collective, GridGroups, RankGrid};
use device::{Category, DType, Request, StreamKind};
use tensor::{Tensor, ops};

use crate::data::between_compute;
use crate::error::Result;

/// Returns the collectives and peers that stages use on the world's group, so that exactly their connections
/// are made before the first step; empty with one stage.
pub fn stage_uses(grid: &RankGrid) -> Vec<Collective<()>> {
    let group = grid.group(Axis::Pipeline);
    if group.ranks.len() == 1 {
        return Vec::new();
    }
    let peers = group.ranks.into_iter().map(Collective::peer);
    // Tensors between stages, tied gradients, the loss, and chunk sums of the norm.
    peers.chain([Collective::all_reduce(DType::F32)]).collect()
}

/// Copies `tensor` from the last rank of a pipeline to all its ranks.
///
/// # Errors
/// A failed transfer.
pub fn share_from_last(groups: &GridGroups, tensor: &Tensor) -> Result<()> {
    let stage = groups.grid().coordinate(Axis::Pipeline);
    let last = groups.grid().size(Axis::Pipeline) - 1;
    between_compute(tensor.device(), || {
        if stage == last {
            let sends = (0..last).map(|stage| (stage, tensor.region())).collect();
            let send = Collective::Exchange { sends, receives: Vec::new() };
            Ok(groups.transfer(Axis::Pipeline, send, StreamKind::Reduce)?)
        } else {
            let receive = Collective::Receive { from: last, region: tensor.region() };
            Ok(groups.transfer(Axis::Pipeline, receive, StreamKind::Reduce)?)
        }
    })
}

/// A gradient of this rank whose weight is tied: another rank along an axis also holds the whole weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiedGradient {
    /// Index of the gradient among this rank's.
    pub gradient: usize,
    /// Axis along which the other rank lies.
    pub axis: Axis,
    /// Coordinate of the other rank.
    pub peer: usize,
}

/// Adds to the gradient of a tied weight the gradient of its use on the other rank, which does the same: one
/// rounded addition of two numbers, whose bits do not depend on their order.
///
/// # Errors
/// A failed transfer; out of memory.
pub fn add_tied(groups: &GridGroups, tied: TiedGradient, gradient: &Tensor) -> Result<()> {
    let device = gradient.device();
    let request = Request::new(Category::Communication, "tied_gradient");
    let other = Tensor::empty(device, gradient.shape(), gradient.dtype(), request)?;
    between_compute(device, || {
        let sends = vec![(tied.peer, gradient.region())];
        let receives = vec![(tied.peer, other.region())];
        Ok(groups.transfer(tied.axis, Collective::Exchange { sends, receives }, StreamKind::Reduce)?)
    })?;
    Ok(ops::add::into(gradient, &other)?)
}
