//! Gradients of a step: added up in lanes as backward gives them, and over ranks as buckets fill.

use autograd::{AutogradError, GradientSink, Target, UseId, Weight};
use collective::DataPlane;
use device::{Category, DType, Device, Request, StreamKind};
use nn::Parameters;
use tensor::{Tensor, ops};

use super::buckets::{BucketLayout, Place};
use super::lanes::Lanes;
use super::tree::tree_all_reduce;
use crate::error::{ParallelError, Result};

/// How gradients are reduced.
#[derive(Clone, Copy, Debug)]
pub struct ReductionOptions {
    /// This rank's lanes.
    pub lanes: Lanes,
    /// Data-parallel ranks.
    pub data: usize,
    /// A bucket is closed before it would exceed this.
    pub bucket_bytes: usize,
}

/// Persistent gradient buffers of one rank and the state of the step in them.
///
/// In a step: for each of the rank's micro-batches in order, [`GradientReduction::sink`] is given to backward and
/// [`GradientReduction::add_loss`] the loss; then [`GradientReduction::finish`]; then the gradients can be read.
#[derive(Debug)]
pub struct GradientReduction {
    device: Device,
    options: ReductionOptions,
    layout: BucketLayout,
    /// By set, then bucket; the last bucket of each holds the loss.
    sets: Vec<Vec<Tensor>>,
    scratch: Option<Tensor>,
    /// View of set 0 by parameter: what the optimizer reads.
    gradients: Vec<Tensor>,
    /// Second and later uses of a parameter, in use order: (parameter, view of set 0).
    further_uses: Vec<(usize, Tensor)>,
    names: Vec<String>,
    micro_batch: usize,
    /// Gradients that the current backward has yet to give, by bucket.
    missing: Vec<usize>,
}

impl GradientReduction {
    /// Takes the buffers for `parameters`. Errors: out of memory.
    pub fn new(device: &Device, parameters: &Parameters, options: ReductionOptions) -> Result<Self> {
        let uses = parameters.uses();
        let shapes: Vec<_> = uses.iter().map(|u| parameters.list()[u.parameter.0].tensor.shape()).collect();
        let sizes: Vec<_> = shapes.iter().map(|shape| shape.elements()).collect();
        let bucket_elements = options.bucket_bytes / DType::F32.bytes();
        let layout = BucketLayout::new(&sizes, bucket_elements, options.data);
        let loss = BucketLayout::new(&[1], 1, options.data).largest();
        let mut sets = Vec::new();
        for _ in 0..options.lanes.sets() {
            let request = Request::new(Category::Gradient, "gradient_bucket");
            let buckets = layout.elements.iter().chain([&loss]);
            let set = buckets.map(|elements| Tensor::zeros(device, [*elements], DType::F32, request));
            sets.push(set.collect::<tensor::Result<Vec<_>>>()?);
        }
        let scratch = match options.data {
            1 => None,
            _ => {
                let request =
                    Request::new(Category::Communication, "reduction_scratch").on(StreamKind::Reduce);
                Some(Tensor::empty(device, [layout.largest().max(loss)], DType::F32, request)?)
            }
        };
        let mut gradients: Vec<Option<Tensor>> = vec![None; parameters.list().len()];
        let mut further_uses = Vec::new();
        for (index, used) in uses.iter().enumerate() {
            let Place { bucket, offset } = layout.places[index];
            let view = sets[0][bucket].view(offset, shapes[index])?;
            match &mut gradients[used.parameter.0] {
                Some(_) => further_uses.push((used.parameter.0, view)),
                empty => *empty = Some(view),
            }
        }
        let names: Vec<_> = parameters.list().iter().map(|p| p.name.clone()).collect();
        let unused = |(view, name): (Option<Tensor>, &String)| {
            view.ok_or_else(|| ParallelError::MissingGradient { parameter: name.clone() })
        };
        let gradients = gradients.into_iter().zip(&names).map(unused).collect::<Result<Vec<_>>>()?;
        let names = uses.iter().map(|u| names[u.parameter.0].clone()).collect();
        let missing = layout.members.clone();
        let device = device.clone();
        Ok(GradientReduction {
            device,
            options,
            layout,
            sets,
            scratch,
            gradients,
            further_uses,
            names,
            micro_batch: 0,
            missing,
        })
    }

    /// The sink for the next micro-batch's backward.
    pub fn sink<'a>(&'a mut self, plane: &'a mut dyn DataPlane) -> MicroBatchSink<'a> {
        self.missing.clone_from(&self.layout.members);
        MicroBatchSink { reduction: self, plane }
    }

    /// Adds this micro-batch's loss, in the same lanes and tree, and goes on to the next micro-batch.
    pub fn add_loss(&mut self, loss: &Tensor) -> Result<()> {
        let bucket = self.layout.elements.len();
        let slot = self.sets[self.set()][bucket].view(0, [1])?;
        let loss = loss.reshape([1])?;
        match self.first_of_lane() {
            true => slot.copy_from(&loss)?,
            false => ops::add::into(&slot, &loss)?,
        }
        if self.last_of_lane() {
            self.fold(bucket)?;
        }
        self.micro_batch += 1;
        Ok(())
    }

    /// Completes the step's sums: what is left to reduce, and the uses of parameters that are used more than once,
    /// added in the order of the uses. Errors: a gradient that never came, a collective's.
    pub fn finish(&mut self, plane: &mut dyn DataPlane) -> Result<()> {
        let expected = self.options.lanes.micro_batches();
        if self.micro_batch != expected {
            let problem =
                format!("a step has {expected} micro-batches on this rank, and {} ran", self.micro_batch);
            return Err(ParallelError::Grid(problem));
        }
        if let Some(bucket) = self.missing.iter().position(|missing| *missing > 0) {
            let first = self.layout.places.iter().position(|place| place.bucket == bucket).unwrap_or(0);
            return Err(ParallelError::MissingGradient { parameter: self.names[first].clone() });
        }
        self.reduce(self.layout.elements.len(), plane)?;
        let reduced = self.device.record(StreamKind::Reduce)?;
        self.device.wait(StreamKind::Compute, &reduced)?;
        for (parameter, view) in &self.further_uses {
            ops::add::into(&self.gradients[*parameter], view)?;
        }
        self.micro_batch = 0;
        Ok(())
    }

    /// The summed gradient of each parameter, in the parameters' order; the next step overwrites them.
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients
    }

    /// The summed loss, one element; the next step overwrites it.
    pub fn loss(&self) -> Result<Tensor> {
        Ok(self.sets[0][self.layout.elements.len()].view(0, [1])?)
    }

    fn lane(&self) -> usize {
        self.micro_batch / self.options.lanes.micro_batches_per_lane
    }

    fn set(&self) -> usize {
        self.options.lanes.set_of(self.lane())
    }

    fn first_of_lane(&self) -> bool {
        self.micro_batch.is_multiple_of(self.options.lanes.micro_batches_per_lane)
    }

    fn last_of_lane(&self) -> bool {
        (self.micro_batch + 1).is_multiple_of(self.options.lanes.micro_batches_per_lane)
    }

    /// Counts a gradient; the bucket's last one in a lane's last micro-batch sends the bucket up the tree.
    fn complete(&mut self, place: Place, plane: &mut dyn DataPlane) -> Result<()> {
        self.missing[place.bucket] = self.missing[place.bucket].saturating_sub(1);
        if self.missing[place.bucket] > 0 || !self.last_of_lane() {
            return Ok(());
        }
        self.fold(place.bucket)?;
        match self.micro_batch + 1 == self.options.lanes.micro_batches() {
            true => self.reduce(place.bucket, plane),
            false => Ok(()),
        }
    }

    /// The tree's levels inside this rank.
    fn fold(&self, bucket: usize) -> Result<()> {
        let top = self.set();
        for level in (0..self.options.lanes.folds_after(self.lane())).map(|fold| top - fold) {
            ops::add::into(&self.sets[level - 1][bucket], &self.sets[level][bucket])?;
        }
        Ok(())
    }

    /// The tree's levels between ranks, on a stream of their own while backward goes on.
    fn reduce(&self, bucket: usize, plane: &mut dyn DataPlane) -> Result<()> {
        let Some(scratch) = &self.scratch else { return Ok(()) };
        let filled = self.device.record(StreamKind::Compute)?;
        self.device.wait(StreamKind::Reduce, &filled)?;
        let bucket = &self.sets[0][bucket];
        let scratch = scratch.view(0, [bucket.elements()])?;
        tree_all_reduce(plane, bucket, &scratch, StreamKind::Reduce)
    }
}

/// Gives one micro-batch's gradients their places in the buckets, and reduces buckets as they fill.
pub struct MicroBatchSink<'a> {
    reduction: &'a mut GradientReduction,
    plane: &'a mut dyn DataPlane,
}

impl std::fmt::Debug for MicroBatchSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MicroBatchSink").field("micro_batch", &self.reduction.micro_batch).finish()
    }
}

impl MicroBatchSink<'_> {
    fn place(&self, use_id: UseId) -> autograd::Result<Place> {
        let unknown =
            || AutogradError::NoTarget { use_id: use_id.0, reason: "it was not registered".to_owned() };
        self.reduction.layout.place(use_id).ok_or_else(unknown)
    }
}

impl GradientSink for MicroBatchSink<'_> {
    fn target(&mut self, weight: &Weight) -> autograd::Result<Target> {
        let Place { bucket, offset } = self.place(weight.use_id())?;
        let reduction = &self.reduction;
        let tensor = reduction.sets[reduction.set()][bucket].view(offset, weight.tensor().shape())?;
        Ok(Target { tensor, accumulate: !reduction.first_of_lane() })
    }

    fn ready(&mut self, use_id: UseId) -> autograd::Result<()> {
        let place = self.place(use_id)?;
        Ok(self.reduction.complete(place, self.plane)?)
    }
}
