//! Loads of experts: the number of rows that each expert processes in a step.
//!
//! Training passes count the rows of their micro-batches, ranks gather all counts, and
//! [`ExpertLoads::finish`] adds them. Counts are integers, so sums are equal on every grid.

use std::cell::RefCell;
use std::rc::Rc;

use autograd::Tape;
use device::{Category, DType, Device, Request};
use tensor::Tensor;
use tensor::ops::routing;

use crate::buffers::ModelBuffer;
use crate::error::Result;

/// The loads of all layers with experts of a model or stage.
#[derive(Debug, Default)]
pub struct ExpertLoads {
    layers: RefCell<Vec<Layer>>,
    counts: RefCell<Option<Counts>>,
}

#[derive(Debug)]
struct Layer {
    /// Index of the layer in the model.
    index: usize,
    experts: usize,
    /// Index of its first expert among the experts of all layers.
    first: usize,
    correction: Option<ModelBuffer>,
}

#[derive(Debug)]
struct Counts {
    /// Counts of this step by rank, `[ranks, experts of all layers]` u32.
    by_rank: Tensor,
    /// Sums over ranks, `[experts of all layers]` u32.
    sums: Tensor,
    /// Row index of this rank.
    own: usize,
}

/// The loads of one layer's experts.
#[derive(Clone, Debug)]
pub struct LayerLoads {
    all: Rc<ExpertLoads>,
    experts: usize,
    first: usize,
}

impl ExpertLoads {
    /// Registers the experts of layer `index`; `correction` is the buffer added to their scores, if any.
    pub(crate) fn add(
        self: &Rc<Self>,
        index: usize,
        experts: usize,
        correction: Option<ModelBuffer>,
    ) -> LayerLoads {
        let first = self.width();
        self.layers.borrow_mut().push(Layer { index, experts, first, correction });
        LayerLoads { all: Rc::clone(self), experts, first }
    }

    /// Returns whether no layer has experts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.borrow().is_empty()
    }

    /// Number of experts over all layers.
    fn width(&self) -> usize {
        self.layers.borrow().last().map_or(0, |layer| layer.first + layer.experts)
    }

    /// Allocates the counts of `ranks` ranks, where `own` is this rank's index. Without this call, training
    /// passes count nothing. Does nothing if no layer has experts.
    pub fn keep(&self, device: &Device, ranks: usize, own: usize) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let _scope = device.module("expert_loads");
        let request = Request::new(Category::Buffer, "expert_loads");
        let by_rank = Tensor::zeros(device, [ranks, self.width()], DType::U32, request)?;
        let sums = Tensor::zeros(device, [self.width()], DType::U32, request)?;
        *self.counts.borrow_mut() = Some(Counts { by_rank, sums, own });
        Ok(())
    }

    /// Zeroes this rank's counts for a new step.
    pub fn begin(&self) -> Result<()> {
        self.counts.borrow().as_ref().map_or(Ok(()), |counts| Ok(counts.own_row()?.zero()?))
    }

    /// The counts of all ranks, `[ranks, experts of all layers]` u32, to be gathered; this rank has filled
    /// its own row. `None` if nothing is counted.
    #[must_use]
    pub fn counts(&self) -> Option<Tensor> {
        self.counts.borrow().as_ref().map(|counts| counts.by_rank.clone())
    }

    /// Sums the counts over ranks, and moves the corrections of the scores by `rate` towards equal loads.
    pub fn finish(&self, rate: f32) -> Result<()> {
        let counts = self.counts.borrow();
        let Some(Counts { by_rank, sums, .. }) = counts.as_ref() else { return Ok(()) };
        routing::sum_loads(by_rank, sums)?;
        if rate == 0.0 {
            return Ok(());
        }
        for Layer { experts, first, correction, .. } in self.layers.borrow().iter() {
            if let Some(correction) = correction {
                routing::move_correction(correction.tensor(), &sums.view(*first, [*experts])?, rate)?;
            }
        }
        Ok(())
    }

    /// The loads of the last step, `[experts of all layers]` u32; `None` if nothing is counted.
    #[must_use]
    pub fn sums(&self) -> Option<Tensor> {
        self.counts.borrow().as_ref().map(|counts| counts.sums.clone())
    }

    /// The layers with experts as (layer index, number of experts), in the order of their loads.
    #[must_use]
    pub fn layers(&self) -> Vec<(usize, usize)> {
        self.layers.borrow().iter().map(|layer| (layer.index, layer.experts)).collect()
    }
}

impl Counts {
    fn own_row(&self) -> Result<Tensor> {
        let width = self.by_rank.shape().columns();
        Ok(self.by_rank.view(self.own * width, [width])?)
    }
}

impl LayerLoads {
    /// Returns the counts to increase, `[experts]` u32, if `tape` belongs to a training step.
    ///
    /// # Errors
    /// Errors of the tensor view.
    pub(crate) fn counts(&self, tape: &Tape) -> Result<Option<Tensor>> {
        let counts = self.all.counts.borrow();
        let is_counted = tape.mode().updates_buffers() && !tape.pass().is_padding;
        let Some(counts) = counts.as_ref().filter(|_| is_counted) else { return Ok(None) };
        Ok(Some(counts.own_row()?.view(self.first, [self.experts])?))
    }
}
