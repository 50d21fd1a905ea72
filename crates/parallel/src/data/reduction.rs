//! The reduction of a step's gradients: summed in lanes during backward, and over ranks as buckets fill.

mod lane_sums;
mod phase;
mod rank_sums;
mod round_sums;
mod run_sums;
mod shared;
mod sink;
mod step_sums;
mod views;

use autograd::{AutogradError, UseId, Weight};
use collective::{Axis, DividedGroup, RankTree};
use device::{Category, DType, Device, Request};
use nn::Parameters;
use tensor::{Tensor, ops};

use super::buckets::BucketLayout;
use super::groups::weight_groups;
use super::options::ReductionOptions;
use super::zero::OptimizerShards;
use crate::error::{ParallelError, Result};
pub(crate) use phase::SinkPhase;
use round_sums::RoundSums;
pub use round_sums::round_sets;
use run_sums::RunSums;
pub use shared::SharedTensors;
pub use sink::{GradientObserver, MicroBatchSink};
use step_sums::{Progress, StepSums};
use views::ShardGradients;

/// The persistent gradient buffers of one stage on one rank, and the state of the current step.
///
/// For each of the rank's micro-batches in order, a step calls [`GradientReduction::sink`] for backward and
/// [`GradientReduction::end_micro_batch`] with the loss. Then it calls [`GradientReduction::finish`], after
/// which the gradients can be read. The `group` of all calls is the group of [`GradientReduction::axis`],
/// divided into groups of ranks that share state.
#[derive(Debug)]
pub struct GradientReduction {
    layout: BucketLayout,
    /// Dtype of the gradients.
    dtype: DType,
    sums: Box<dyn StepSums>,
    shards: OptimizerShards,
    /// The axis over which gradients are summed.
    axis: Axis,
    weight_groups: Vec<Vec<usize>>,
    /// Views of the sums, for the optimizer.
    gradients: ShardGradients,
    /// Whether the loss is summed too.
    has_loss: bool,
    /// Name of each use's parameter.
    names: Vec<String>,
    /// Number of gradients that the current backward pass still has to produce, by bucket.
    missing: Vec<usize>,
}

impl GradientReduction {
    /// Allocates the buffers for the gradients of `parameters`.
    ///
    /// # Errors
    /// Memory is exhausted, a parameter has no uses, or a gradient is summed over several axes.
    pub fn new(device: &Device, parameters: &Parameters, options: ReductionOptions) -> Result<Self> {
        let (owners, index) = options.owners();
        let layout =
            BucketLayout::from_parameters(parameters, options.dtype, options.bucket_end, options.ranks());
        let shards = OptimizerShards::new(options.zero_stage, parameters, &layout, owners, index);
        let (gradients, sums): (_, Box<dyn StepSums>) = match options.sums_in_shards() {
            true => {
                let sums = RoundSums::new(device, &layout.elements, options)?;
                let parts = Some(index);
                (ShardGradients::new(parameters, &layout, &shards, (sums.sums(), parts))?, Box::new(sums))
            }
            false => {
                let sums = RunSums::new(device, &layout.elements, options, shards.is_sharded())?;
                (ShardGradients::new(parameters, &layout, &shards, (sums.sums(), None))?, Box::new(sums))
            }
        };
        let names = |used: &nn::Use| parameters.list()[used.parameter.0].name.clone();
        Ok(GradientReduction {
            axis: reduction_axis(parameters)?,
            weight_groups: weight_groups(parameters, &layout),
            names: parameters.uses().iter().map(names).collect(),
            missing: layout.members.clone(),
            layout,
            dtype: options.dtype,
            sums,
            shards,
            gradients,
            has_loss: options.loss,
        })
    }

    /// Starts reducing once this fraction of gradients exists: 0 (default) as each bucket fills, 1 after
    /// backward. Affects speed, never results.
    pub fn reduce_from(&mut self, fraction: f64) {
        let all: usize = self.layout.elements.iter().sum();
        self.sums.hold(if fraction < 1.0 { (fraction * all as f64) as usize } else { usize::MAX });
    }

    /// Returns the tensors that ranks access in each other's memory. The group must be dropped before this
    /// value and the parameters.
    ///
    /// # Errors
    /// The weights are currently released.
    pub fn shared(&self, parameters: &Parameters) -> Result<SharedTensors> {
        let Some(shared) = self.sums.shared() else { return Ok(SharedTensors::default()) };
        let weights = match self.shards.is_sharded() {
            true => parameters.list().iter().map(|one| one.weight.tensor()).collect::<tensor::Result<_>>()?,
            false => Vec::new(),
        };
        Ok(SharedTensors { weights, ..shared })
    }

    /// Returns each rank's number of parts of a sum and the order of additions; `None` if gradients are
    /// summed in shards.
    pub fn rank_tree(&self) -> Option<&RankTree> {
        self.sums.rank_tree()
    }

    /// Returns memory for a gradient outside a step: an idle buffer of the sums if there is one, otherwise a
    /// new tensor.
    ///
    /// # Errors
    /// Memory is exhausted, or the use was not registered.
    pub fn scratch(&self, use_id: UseId, weight: &Weight) -> autograd::Result<Tensor> {
        let unknown =
            || AutogradError::NoTarget { use_id: use_id.0, reason: "it was not registered".to_owned() };
        let slot = self.layout.slot(use_id).ok_or_else(unknown)?;
        if let Some(bucket) = self.sums.idle_buffer(slot.bucket) {
            return Ok(bucket.view(slot.offset, weight.shape())?);
        }
        let request = Request::new(Category::Gradient, "repeated_gradient");
        Ok(Tensor::empty(weight.device(), weight.shape(), self.dtype, request)?)
    }

    /// Returns whether the gradients of the next micro-batch are summed over ranks.
    pub fn reduces_next(&self) -> bool {
        self.phase(self.sums.micro_batch()).reduces
    }

    /// Returns the phase of one of this rank's micro-batches in a step.
    pub(crate) fn phase(&self, micro_batch: usize) -> SinkPhase {
        self.sums.phase(micro_batch)
    }

    /// Advances as if `micro_batches` more of the step's micro-batches had ended.
    pub(crate) fn skip(&mut self, micro_batches: usize) {
        self.sums.advance(micro_batches);
    }

    /// Ends a micro-batch whose gradients are complete. On the last stage, adds its loss in the same lanes
    /// and tree.
    pub fn end_micro_batch(&mut self, loss: Option<&Tensor>) -> Result<()> {
        if let Some(loss) = loss.filter(|_| self.has_loss) {
            self.sums.add_loss(&loss.reshape([loss.elements()])?)?;
        }
        self.sums.advance(1);
        Ok(())
    }

    /// Completes the step's sums: sums the remaining buckets over ranks, and adds the gradients of a
    /// parameter's several uses, the last ones first. The sum of all uses but the first is then the same if
    /// another stage has the first.
    ///
    /// # Errors
    /// A micro-batch did not run, backward did not produce a gradient, or a collective failed.
    pub fn finish(&mut self, group: &DividedGroup) -> Result<()> {
        self.check_complete()?;
        self.sums.finish(group)?;
        let ShardGradients { first, further } = &self.gradients;
        for (index, (shard, view)) in further.iter().enumerate().rev() {
            let before = index.checked_sub(1).map(|before| &further[before]);
            let before = before.filter(|(other, _)| other == shard).map(|(_, view)| view);
            ops::add::into(before.unwrap_or(&first[*shard]), view)?;
        }
        Ok(())
    }

    /// Checks that all micro-batches of the step have ended and produced all gradients.
    fn check_complete(&self) -> Result<()> {
        let expected = self.sums.micro_batches();
        let ran = self.sums.micro_batch();
        if ran != expected {
            let problem = format!("a step has {expected} micro-batches on this rank, and {ran} ran");
            return Err(ParallelError::Grid(problem));
        }
        if let Some(bucket) = self.missing.iter().position(|missing| *missing > 0) {
            let first = self.layout.slots.iter().position(|slot| slot.bucket == bucket).unwrap_or(0);
            return Err(ParallelError::MissingGradient { parameter: self.names[first].clone() });
        }
        Ok(())
    }

    /// The axis over which gradients are summed; a step's calls take its group.
    pub fn axis(&self) -> Axis {
        self.axis
    }

    /// The shards of the parameters that each rank owns.
    pub fn shards(&self) -> &OptimizerShards {
        &self.shards
    }

    /// Parameter numbers of each group of weights exchanged together when optimizer state is sharded, in the
    /// order in which forward uses them.
    pub fn weight_groups(&self) -> &[Vec<usize>] {
        &self.weight_groups
    }

    /// The summed gradient of each of this rank's shards, in order. Overwritten by the next step.
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients.first
    }

    /// The step's summed loss and figures, on the last stage. Overwritten by the next step.
    pub fn loss(&self) -> Option<Tensor> {
        self.sums.loss()
    }

    /// Records that a bucket's gradient was produced, and reduces the bucket after the last one.
    fn complete(&mut self, bucket: usize, group: &DividedGroup) -> Result<()> {
        self.missing[bucket] = self.missing[bucket].saturating_sub(1);
        if self.missing[bucket] > 0 {
            return Ok(());
        }
        let buckets = self.layout.elements.iter().zip(&self.missing);
        let elements = buckets.filter(|(_, missing)| **missing == 0).map(|(elements, _)| elements).sum();
        let is_complete = self.missing.iter().all(|missing| *missing == 0);
        self.sums.filled(bucket, Progress { elements, is_complete }, group)
    }
}

/// Returns the axis over which the gradients of all parameters are summed, according to their sharding.
///
/// # Errors
/// Gradients are summed over different axes, or over several.
fn reduction_axis(parameters: &Parameters) -> Result<Axis> {
    let axes_of = |parameter: &nn::Parameter| parameter.sharding.reduction_axes().collect::<Vec<_>>();
    let differs = parameters.list().iter().find(|parameter| axes_of(parameter) != [Axis::Data]);
    match differs {
        None => Ok(Axis::Data),
        Some(parameter) => Err(ParallelError::Grid(format!(
            "the gradient of {} is not summed over the {} axis alone",
            parameter.name,
            Axis::Data.name()
        ))),
    }
}
