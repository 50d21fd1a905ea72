//! Exchanges between pipeline stages between backward and the update: gradients of tied weights, and the
//! loss.
//!
//! Both run on the reduce stream. They start after all earlier compute work, and later compute work waits for
//! them.

use collective::{Axis, Collective, GridGroups, RankGrid};
use device::{Category, DType, Request, StreamKind};
use tensor::{Tensor, ops};

use crate::data::between_compute;
use crate::error::Result;

/// Returns the collectives and peers that stages use on the world's group, so that exactly their connections
/// are made before the first step. Empty for a single stage.
pub fn stage_uses(grid: &RankGrid) -> Vec<Collective<()>> {
    let group = grid.group(Axis::Pipeline);
    if group.ranks.len() == 1 {
        return Vec::new();
    }
    let peers = group.ranks.into_iter().map(Collective::peer);
    // Activations, tied gradients, the loss, and chunk sums of the norm.
    peers.chain([Collective::all_reduce(DType::F32)]).collect()
}

/// Copies `tensor` from the last stage's rank to all ranks of the pipeline.
///
/// # Errors
/// A transfer failed.
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

/// A gradient of a tied weight, which another rank also holds whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiedGradient {
    /// Index of the gradient among this rank's gradients.
    pub gradient: usize,
    /// Axis along which the other rank lies.
    pub axis: Axis,
    /// Coordinate of the other rank.
    pub peer: usize,
}

/// Adds the other rank's gradient of a tied weight to this rank's `gradient`; the other rank does the same.
/// The bits are equal on both, because the addition of two numbers commutes.
///
/// # Errors
/// A transfer failed, or memory is exhausted.
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
