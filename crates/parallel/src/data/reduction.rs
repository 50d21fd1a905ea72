//! The reduction of a step's gradients: summed in lanes during backward, and over ranks as buckets fill.

mod lane_sums;
mod rank_sums;
mod shared;
mod sink;
mod views;

use collective::{Axis, DataPlane, RankTree};
use device::{DType, Device, StreamKind};
use nn::Parameters;
use tensor::{Tensor, ops};

use super::buckets::BucketLayout;
use super::groups::weight_groups;
use super::options::ReductionOptions;
use super::zero::OptimizerShards;
use crate::error::{ParallelError, Result};
use lane_sums::LaneSums;
use rank_sums::{Bucket, RankSums};
pub use shared::SharedTensors;
pub use sink::MicroBatchSink;
use views::ShardGradients;

/// Elements per rank of the bucket of the loss: 512 bytes.
const ALIGNMENT: usize = 128;

/// The persistent gradient buffers of one stage on one rank, and the state of the current step.
///
/// For each of the rank's micro-batches in order, a step calls [`GradientReduction::sink`] for backward and
/// [`GradientReduction::end_micro_batch`] with the loss. Then it calls [`GradientReduction::finish`], after
/// which the gradients can be read. The `plane` of all calls is the plane of [`GradientReduction::axis`].
#[derive(Debug)]
pub struct GradientReduction {
    device: Device,
    layout: BucketLayout,
    /// Sums within the rank. On the last stage there is one more bucket, in f32, for the loss.
    lanes: LaneSums,
    /// Sums over ranks.
    ranks: RankSums,
    shards: OptimizerShards,
    /// The axis over which gradients are summed.
    axis: Axis,
    weight_groups: Vec<Vec<usize>>,
    /// Views of the sums, which the optimizer reads.
    gradients: ShardGradients,
    /// Whether there is a bucket of the loss.
    has_loss: bool,
    /// Name of each use's parameter.
    names: Vec<String>,
    /// Number of gradients that the current backward pass still has to produce, by bucket.
    missing: Vec<usize>,
    /// Number of elements that full buckets must have before the first is summed over ranks.
    held: usize,
    /// Full buckets that are not summed yet.
    waiting: Vec<usize>,
}

/// Properties of a micro-batch that decide how its backward pass uses the gradient buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SinkPhase {
    /// Whether gradients are added to those of the lane.
    accumulates: bool,
    /// Whether gradients are reduced over ranks.
    reduces: bool,
    /// Whether gradients use transient buckets.
    is_transient: bool,
}

impl SinkPhase {
    /// Returns whether two phases differ only in whether gradients are written or added.
    pub(crate) fn differs_in_accumulation(self, other: SinkPhase) -> bool {
        self == SinkPhase { accumulates: !other.accumulates, ..other }
    }
}

impl GradientReduction {
    /// Allocates the buffers for the gradients of `parameters`.
    ///
    /// # Errors
    /// Out of memory; a parameter without uses; parameters whose gradients are summed over several axes.
    pub fn new(device: &Device, parameters: &Parameters, options: ReductionOptions) -> Result<Self> {
        let layout = BucketLayout::of(parameters, options.dtype, options.bucket_bytes, options.ranks);
        let shards =
            OptimizerShards::new(options.zero_stage, parameters, &layout, options.ranks, options.rank);
        let loss = options.loss.then_some(ALIGNMENT * options.ranks);
        let buckets: Vec<_> = layout.elements.iter().map(|elements| (*elements, options.dtype)).collect();
        let buckets = [buckets, loss.map(|loss| (loss, DType::F32)).into_iter().collect()].concat();
        let own = options.reduction.lanes(options.lanes)?;
        let lanes = LaneSums::new(device, own, &buckets)?;
        let sum = (options.reduction, own.rank_tree()?, shards.is_sharded());
        let ranks = RankSums::new(device, sum, (layout.largest(), options.dtype), loss)?;
        let gradients = ShardGradients::new(parameters, &layout, &shards, lanes.sums())?;
        let names = |used: &nn::Use| parameters.list()[used.parameter.0].name.clone();
        Ok(GradientReduction {
            device: device.clone(),
            axis: reduction_axis(parameters)?,
            weight_groups: weight_groups(parameters, &layout),
            names: parameters.uses().iter().map(names).collect(),
            missing: layout.members.clone(),
            layout,
            lanes,
            ranks,
            shards,
            gradients,
            has_loss: options.loss,
            held: 0,
            waiting: Vec::new(),
        })
    }

    /// Starts reducing once this fraction of gradients exists: 0 (default) as each bucket fills, 1 after
    /// backward. Affects speed, never results.
    pub fn reduce_from(&mut self, fraction: f64) {
        let all: usize = self.layout.elements.iter().sum();
        self.held = if fraction < 1.0 { (fraction * all as f64) as usize } else { usize::MAX };
    }

    /// Returns the tensors that ranks access in each other's memory. The plane must be dropped before this
    /// value and the parameters.
    ///
    /// # Errors
    /// Released weights.
    pub fn shared(&self, parameters: &Parameters) -> Result<SharedTensors> {
        if !self.ranks.adds_in_tree() {
            return Ok(SharedTensors::default());
        }
        let weights = match self.shards.is_sharded() {
            true => parameters.list().iter().map(|one| one.weight.tensor()).collect::<tensor::Result<_>>()?,
            false => Vec::new(),
        };
        let further = self.lanes.further_parts().map(<[Tensor]>::to_vec).collect();
        Ok(SharedTensors { sums: self.lanes.sums().to_vec(), weights, further })
    }

    /// The parts of all ranks of a sum, and the order in which they are added.
    pub fn rank_tree(&self) -> &RankTree {
        self.ranks.tree()
    }

    /// Returns whether the next micro-batch is the step's last, whose gradients are summed over ranks.
    pub fn reduces_next(&self) -> bool {
        self.phase(self.lanes.micro_batch()).reduces
    }

    /// Returns the phase of one of this rank's micro-batches in a step.
    pub(crate) fn phase(&self, micro_batch: usize) -> SinkPhase {
        SinkPhase {
            accumulates: self.lanes.accumulates(micro_batch),
            reduces: self.ranks.is_distributed() && self.lanes.is_last(micro_batch),
            is_transient: self.lanes.is_transient(micro_batch),
        }
    }

    /// Continues as if `micro_batches` more of the step's micro-batches had ended.
    pub(crate) fn skip(&mut self, micro_batches: usize) {
        self.lanes.advance(micro_batches);
    }

    /// Ends a micro-batch after all its gradients were produced. On the last stage, adds its loss in the same
    /// lanes and tree.
    pub fn end_micro_batch(&mut self, loss: Option<&Tensor>) -> Result<()> {
        if let Some(loss) = loss.filter(|_| self.has_loss) {
            let bucket = self.layout.elements.len();
            let slot = self.lanes.buffer(bucket)?.view(0, [1])?;
            let loss = loss.reshape([1])?;
            match self.accumulates() {
                true => ops::add::into(&slot, &loss)?,
                false => slot.copy_from(&loss)?,
            }
            if self.lanes.ends_lane() {
                self.lanes.fold(bucket)?;
            }
        }
        self.lanes.advance(1);
        Ok(())
    }

    /// Completes the step's sums: sums the remaining buckets over ranks, and adds the gradients of parameters
    /// with several uses in the order of their uses.
    ///
    /// # Errors
    /// A micro-batch that did not run; a gradient that backward did not produce; a failed collective.
    pub fn finish(&mut self, plane: &mut dyn DataPlane) -> Result<()> {
        self.check_complete()?;
        let mut left = std::mem::take(&mut self.waiting);
        left.extend(self.has_loss.then_some(self.layout.elements.len()));
        self.sum_over_ranks(&left, true, plane)?;
        let reduced = self.device.record(StreamKind::Reduce)?;
        self.device.wait(StreamKind::Compute, &reduced)?;
        for (shard, view) in &self.gradients.further {
            ops::add::into(&self.gradients.first[*shard], view)?;
        }
        self.lanes.restart();
        Ok(())
    }

    /// Checks that all micro-batches of the step have ended, with all their gradients.
    fn check_complete(&self) -> Result<()> {
        let (expected, ran) = (self.lanes.micro_batches(), self.lanes.micro_batch());
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

    /// The axis over which gradients are summed, of which the calls of a step have the plane.
    pub fn axis(&self) -> Axis {
        self.axis
    }

    /// The parts of the parameters that each rank owns.
    pub fn shards(&self) -> &OptimizerShards {
        &self.shards
    }

    /// Parameter numbers of each group of weights that is exchanged together if optimizer state is sharded,
    /// in the order in which forward uses them.
    pub fn weight_groups(&self) -> &[Vec<usize>] {
        &self.weight_groups
    }

    /// The summed gradient of each of this rank's shards, in their order. The next step overwrites them.
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients.first
    }

    /// The summed loss, one element, on the last stage. The next step overwrites it.
    pub fn loss(&self) -> Result<Option<Tensor>> {
        let bucket = self.lanes.sums().get(self.layout.elements.len());
        Ok(bucket.map(|bucket| bucket.view(0, [1])).transpose()?)
    }

    /// Returns whether the current micro-batch adds its gradients to those of its lane.
    fn accumulates(&self) -> bool {
        self.lanes.accumulates(self.lanes.micro_batch())
    }

    /// Counts a produced gradient of a bucket. After the last one of a lane's last micro-batch, the bucket is
    /// folded and summed over ranks.
    fn complete(&mut self, bucket: usize, plane: &mut dyn DataPlane) -> Result<()> {
        self.missing[bucket] = self.missing[bucket].saturating_sub(1);
        if self.missing[bucket] > 0 || !self.lanes.ends_lane() {
            return Ok(());
        }
        self.lanes.fold(bucket)?;
        if !self.lanes.is_last(self.lanes.micro_batch()) {
            return Ok(());
        }
        self.waiting.push(bucket);
        let buckets = self.layout.elements.iter().zip(&self.missing);
        let full: usize = buckets.filter(|(_, missing)| **missing == 0).map(|(elements, _)| elements).sum();
        if full < self.held {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let over = self.missing.iter().all(|missing| *missing == 0);
        self.sum_over_ranks(&waiting, over, plane)
    }

    fn sum_over_ranks(&self, buckets: &[usize], over: bool, plane: &mut dyn DataPlane) -> Result<()> {
        let is_loss = |bucket: usize| bucket == self.layout.elements.len();
        let bucket = |index: &usize| Bucket { parts: self.lanes.parts(*index), is_loss: is_loss(*index) };
        self.ranks.sum(&buckets.iter().map(bucket).collect::<Vec<_>>(), over, plane)
    }
}

/// Returns the axis over which the gradients of all parameters are summed, as their sharding says.
///
/// # Errors
/// Parameters with different axes, or with several.
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
