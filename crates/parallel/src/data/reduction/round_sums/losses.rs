//! The losses of a step, which every rank of the last stage needs.

use collective::{Collective, ProcessGroup};
use device::{Category, DType, Device, Request, StreamKind};
use tensor::ops::tree::{MOST_PARTS, SumTree};
use tensor::{Tensor, ops};

use crate::data::assignment::Assignment;
use crate::data::options::ReductionOptions;
use crate::data::stream_order::between_compute;
use crate::error::Result;

/// Granularity of a rank's losses in elements: 512 bytes.
const ALIGNMENT: usize = 128;

/// Losses by lane: this rank's, and gathered from all ranks.
#[derive(Debug)]
pub(super) struct LaneLosses {
    assignment: Assignment,
    own: Tensor,
    /// Losses of all ranks, one rank after another.
    all: Tensor,
    total: Tensor,
}

impl LaneLosses {
    /// Allocates the losses of a rank's lanes.
    pub(super) fn new(device: &Device, options: &ReductionOptions) -> Result<Self> {
        let ReductionOptions { assignment, rank, loss_values: values, .. } = *options;
        let each = (assignment.lanes_of(0) * values).next_multiple_of(ALIGNMENT);
        let request = Request::new(Category::Gradient, "lane_losses");
        let all = Tensor::zeros(device, [assignment.replicas() * each], DType::F32, request)?;
        let total = Tensor::zeros(device, [values], DType::F32, request)?;
        Ok(LaneLosses { assignment, own: all.view(rank * each, [each])?, all, total })
    }

    /// Adds a micro-batch's loss to this rank's lane `lane`, or overwrites it.
    pub(super) fn add(&self, lane: usize, loss: &Tensor, accumulates: bool) -> Result<()> {
        let own = self.own.view(lane * loss.elements(), loss.shape())?;
        match accumulates {
            true => ops::add::into(&own, loss)?,
            false => own.copy_from(loss)?,
        }
        Ok(())
    }

    /// Gathers the losses of all lanes and adds them in the tree.
    pub(super) fn sum(&self, group: &ProcessGroup) -> Result<()> {
        between_compute(self.all.device(), || {
            Ok(group.run(
                Collective::AllGather { input: self.own.region(), output: self.all.region() },
                StreamKind::Reduce,
            )?)
        })?;
        let values = self.total.elements();
        let per_lane = self.assignment.micro_batches_per_lane();
        let lane = |lane: usize| {
            let (rank, index) = self.assignment.owner(lane * per_lane);
            self.all.view(rank * self.own.elements() + index / per_lane * values, [values])
        };
        let mut sums = (0..self.assignment.lanes()).map(lane).collect::<tensor::Result<Vec<_>>>()?;
        // Aligned runs of a power of two of lanes are subtrees.
        while sums.len() > 1 {
            for group in sums.chunks(MOST_PARTS) {
                ops::tree::into_on(&group[0], group, &SumTree::balanced(group.len()), StreamKind::Compute)?;
            }
            sums = sums.into_iter().step_by(MOST_PARTS).collect();
        }
        if let Some(sum) = sums.first() {
            self.total.copy_from(sum)?;
        }
        Ok(())
    }

    /// The sum of the step's losses.
    pub(super) fn total(&self) -> &Tensor {
        &self.total
    }
}
