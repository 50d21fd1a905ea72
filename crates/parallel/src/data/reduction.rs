//! The reduction of a step's gradients: summed in lanes during backward, and over ranks as buckets fill.

mod over_ranks;
mod sink;
mod views;

use device::{Category, DType, Device, Region, Request, StreamKind};
use nn::Parameters;
use tensor::{Tensor, ops};

use super::buckets::BucketLayout;
use super::groups::weight_groups;
use super::options::{Reduction, ReductionOptions};
use super::zero::OptimizerShards;
use crate::error::{ParallelError, Result};
pub use sink::MicroBatchSink;
use views::ShardGradients;

fn gradient_bucket(device: &Device, elements: usize, dtype: DType) -> Result<Tensor> {
    let request = Request::new(Category::Gradient, "gradient_bucket");
    Ok(Tensor::zeros(device, [elements], dtype, request)?)
}

/// Elements per rank of the bucket of the loss: 512 bytes.
const ALIGNMENT: usize = 128;

/// The persistent gradient buffers of one stage on one rank, and the state of the current step.
///
/// For each of the rank's micro-batches in order, a step calls [`GradientReduction::sink`] for backward and
/// [`GradientReduction::end_micro_batch`] with the loss. Then it calls [`GradientReduction::finish`], after
/// which the gradients can be read. The `plane` of all calls is the plane of
/// [`Axis::Data`](crate::Axis::Data).
#[derive(Debug)]
pub struct GradientReduction {
    device: Device,
    options: ReductionOptions,
    layout: BucketLayout,
    /// Buckets by set. On the last stage there is one more bucket, in f32, for the loss.
    sets: Vec<Vec<Tensor>>,
    /// By bucket, the buffer of a last lane without a set, from the bucket's first gradient to its sum.
    passing: Vec<Option<Tensor>>,
    scratch: Option<Scratch>,
    shards: OptimizerShards,
    weight_groups: Vec<Vec<usize>>,
    /// Views of set 0, which the optimizer reads.
    gradients: ShardGradients,
    /// Name of each use's parameter.
    names: Vec<String>,
    micro_batch: usize,
    /// Number of gradients that the current backward pass still has to produce, by bucket.
    missing: Vec<usize>,
    /// Number of elements that full buckets must have before the first is reduced over ranks.
    held: usize,
    /// Full buckets that are not reduced yet.
    waiting: Vec<usize>,
}

/// Properties of a micro-batch that decide how its backward pass uses the gradient buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SinkPhase {
    /// Whether gradients are added to those of the lane.
    accumulates: bool,
    /// Whether gradients are reduced over ranks.
    reduces: bool,
    /// Gradients pass through buckets of their own.
    passes: bool,
}

impl SinkPhase {
    /// Returns whether two phases differ only in whether gradients are written or added.
    pub(crate) fn differs_in_accumulation(self, other: SinkPhase) -> bool {
        self == SinkPhase { accumulates: !other.accumulates, ..other }
    }
}

/// Buffers for the other ranks' values of one bucket, for [`Reduction::Tree`].
#[derive(Debug)]
struct Scratch {
    gradients: Tensor,
    /// Buffer for the loss, in f32, on the last stage.
    loss: Option<Tensor>,
}

impl Scratch {
    fn new(device: &Device, gradients: usize, dtype: DType, loss: Option<usize>) -> Result<Self> {
        let request = Request::new(Category::Communication, "reduction_scratch").on(StreamKind::Reduce);
        let gradients = Tensor::empty(device, [gradients], dtype, request)?;
        let loss = loss.map(|elements| Tensor::empty(device, [elements], DType::F32, request));
        Ok(Scratch { gradients, loss: loss.transpose()? })
    }
}

impl GradientReduction {
    /// Allocates the buffers for the gradients of `parameters`.
    ///
    /// # Errors
    /// Out of memory; a parameter without uses.
    pub fn new(device: &Device, parameters: &Parameters, options: ReductionOptions) -> Result<Self> {
        let layout = BucketLayout::of(parameters, options.dtype, options.bucket_bytes, options.ranks);
        let shards =
            OptimizerShards::new(options.zero_stage, parameters, &layout, options.ranks, options.rank);
        let loss = options.loss.then_some(ALIGNMENT * options.ranks);
        let buckets: Vec<_> = layout.elements.iter().map(|elements| (*elements, options.dtype)).collect();
        let buckets = [buckets, loss.map(|loss| (loss, DType::F32)).into_iter().collect()].concat();
        let mut sets = Vec::new();
        for _ in 0..options.lanes.sets() {
            let set = buckets.iter().map(|(elements, dtype)| gradient_bucket(device, *elements, *dtype));
            sets.push(set.collect::<Result<Vec<_>>>()?);
        }
        let scratch = match (options.reduction, options.ranks) {
            (Reduction::Library, _) | (_, 1) => None,
            (Reduction::Tree, _) => Some(Scratch::new(device, layout.largest(), options.dtype, loss)?),
        };
        let gradients = ShardGradients::new(parameters, &layout, &shards, &sets[0])?;
        let weight_groups = weight_groups(parameters, &layout);
        let names = |used: &nn::Use| parameters.list()[used.parameter.0].name.clone();
        let names = parameters.uses().iter().map(names).collect();
        let missing = layout.members.clone();
        let device = device.clone();
        Ok(GradientReduction {
            device,
            options,
            layout,
            sets,
            passing: vec![None; buckets.len()],
            scratch,
            shards,
            weight_groups,
            gradients,
            names,
            micro_batch: 0,
            missing,
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

    /// Regions that ranks access in each other's memory ([`DataPlane::share`](collective::DataPlane::share)):
    /// the buckets and, if optimizer state is sharded, the weights. Empty if a library sums or there is one
    /// rank. The plane must be dropped before this value and the parameters.
    pub fn shared<'a>(&'a self, parameters: &'a Parameters) -> Vec<Region<'a>> {
        if self.scratch.is_none() {
            return Vec::new();
        }
        let weights = parameters.list().iter().map(|parameter| parameter.tensor.region());
        let weights = weights.filter(|_| self.shards.is_sharded());
        self.sets[0].iter().map(Tensor::region).chain(weights).collect()
    }

    /// Returns whether the next micro-batch is the step's last, whose gradients are reduced over ranks.
    pub fn reduces_next(&self) -> bool {
        self.phase(self.micro_batch).reduces
    }

    /// Returns the phase of one of this rank's micro-batches in a step.
    pub(crate) fn phase(&self, micro_batch: usize) -> SinkPhase {
        let ReductionOptions { lanes, ranks, .. } = &self.options;
        SinkPhase {
            accumulates: !micro_batch.is_multiple_of(lanes.micro_batches_per_lane),
            reduces: *ranks > 1 && micro_batch + 1 == lanes.micro_batches(),
            passes: lanes.last_passes() && micro_batch + 1 == lanes.micro_batches(),
        }
    }

    /// Continues as if `micro_batches` more of the step's micro-batches had ended.
    pub(crate) fn pass_over(&mut self, micro_batches: usize) {
        self.micro_batch += micro_batches;
    }

    /// Ends a micro-batch after all its gradients were produced. On the last stage, adds its loss in the same
    /// lanes and tree.
    pub fn end_micro_batch(&mut self, loss: Option<&Tensor>) -> Result<()> {
        if let Some(loss) = loss.filter(|_| self.options.loss) {
            let bucket = self.layout.elements.len();
            let slot = self.bucket(bucket)?.view(0, [1])?;
            let loss = loss.reshape([1])?;
            match self.first_of_lane() {
                true => slot.copy_from(&loss)?,
                false => ops::add::into(&slot, &loss)?,
            }
            if self.last_of_lane() {
                self.fold(bucket)?;
            }
        }
        self.micro_batch += 1;
        Ok(())
    }

    /// Checks that all micro-batches of the step have ended.
    ///
    /// # Errors
    /// A micro-batch that did not run; a gradient that backward did not produce.
    pub fn check_complete(&self) -> Result<()> {
        let expected = self.options.lanes.micro_batches();
        if self.micro_batch != expected {
            let problem =
                format!("a step has {expected} micro-batches on this rank, and {} ran", self.micro_batch);
            return Err(ParallelError::Grid(problem));
        }
        if let Some(bucket) = self.missing.iter().position(|missing| *missing > 0) {
            let first = self.layout.slots.iter().position(|slot| slot.bucket == bucket).unwrap_or(0);
            return Err(ParallelError::MissingGradient { parameter: self.names[first].clone() });
        }
        Ok(())
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
        let bucket = self.sets[0].get(self.layout.elements.len());
        Ok(bucket.map(|bucket| bucket.view(0, [1])).transpose()?)
    }

    /// The buffer of a bucket in the set of the current lane.
    fn bucket(&mut self, bucket: usize) -> Result<Tensor> {
        if let Some(set) = self.sets.get(self.set()) {
            return Ok(set[bucket].clone());
        }
        if let Some(passing) = &self.passing[bucket] {
            return Ok(passing.clone());
        }
        let like = &self.sets[0][bucket];
        let passing = gradient_bucket(&self.device, like.elements(), like.dtype())?;
        self.passing[bucket] = Some(passing.clone());
        Ok(passing)
    }

    fn lane(&self) -> usize {
        self.micro_batch / self.options.lanes.micro_batches_per_lane
    }

    fn set(&self) -> usize {
        self.options.lanes.set_of(self.lane())
    }

    fn first_of_lane(&self) -> bool {
        !self.phase(self.micro_batch).accumulates
    }

    fn last_of_lane(&self) -> bool {
        (self.micro_batch + 1).is_multiple_of(self.options.lanes.micro_batches_per_lane)
    }

    /// Adds up the levels of the tree that lie inside this rank and that the current lane completes.
    fn fold(&mut self, bucket: usize) -> Result<()> {
        let (top, mut upper) = (self.set(), self.passing[bucket].take());
        for level in (0..self.options.lanes.folds_after(self.lane())).map(|fold| top - fold) {
            let upper = upper.take().unwrap_or_else(|| self.sets[level][bucket].clone());
            ops::add::into(&self.sets[level - 1][bucket], &upper)?;
        }
        Ok(())
    }
}
