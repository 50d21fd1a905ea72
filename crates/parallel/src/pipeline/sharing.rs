//! What the stages of a pipeline give each other between backward and update.
//!
//! It goes over the stream of the reduction, between events: compute work before is done when it begins, and
//! compute work after begins when it is done.

use collective::{CollectiveUse, DataPlane};
use device::{Category, DType, Request, StreamKind};
use tensor::{Tensor, ops};

use crate::data::between_compute;
use crate::error::Result;
use crate::grid::RankGrid;

/// What the stages of a pipeline do over the plane of all ranks, so that its connections are made before the
/// first step and no others are.
pub fn stage_uses(grid: &RankGrid) -> Vec<CollectiveUse> {
    let replica =
        (0..grid.pipeline()).map(|stage| CollectiveUse::Peer(grid.rank_at(grid.data_rank(), stage)));
    // Tensors between stages, tied gradients and the loss; and the sums for the norm.
    replica.chain([CollectiveUse::AllReduce(DType::F32)]).collect()
}

/// Gives every rank of a pipeline the values that `tensor` has on its last rank.
pub fn share_from_last(plane: &mut dyn DataPlane, grid: &RankGrid, tensor: &Tensor) -> Result<()> {
    let last = grid.pipeline() - 1;
    let rank = |stage: usize| grid.rank_at(grid.data_rank(), stage);
    between_compute(tensor.device(), || {
        if grid.stage() == last {
            let sends: Vec<_> = (0..last).map(|stage| (rank(stage), tensor.region())).collect();
            plane.exchange(&sends, &[], StreamKind::Reduce)?;
        } else {
            plane.receive(rank(last), tensor.region(), StreamKind::Reduce)?;
        }
        Ok(())
    })
}

/// Adds to the gradient of a weight's use here that of its use on rank `peer`, which does the same: one
/// rounded addition of two numbers, whose bits do not depend on which of them comes first.
pub fn add_tied(plane: &mut dyn DataPlane, peer: usize, gradient: &Tensor) -> Result<()> {
    let device = gradient.device();
    let request = Request::new(Category::Communication, "tied_gradient");
    let other = Tensor::empty(device, gradient.shape(), gradient.dtype(), request)?;
    between_compute(device, || {
        let (sends, receives) = ([(peer, gradient.region())], [(peer, other.region())]);
        Ok(plane.exchange(&sends, &receives, StreamKind::Reduce)?)
    })?;
    Ok(ops::add::into(gradient, &other)?)
}
