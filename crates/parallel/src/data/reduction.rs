//! Gradients of a step: added up in lanes as backward gives them, and over ranks as buckets fill.

use autograd::{AutogradError, GradientSink, Target, UseId, Weight};
use collective::DataPlane;
use device::{Category, DType, Device, Region, Request, StreamKind};
use nn::Parameters;
use tensor::{Tensor, ops};

use super::buckets::{BucketLayout, Place};
use super::groups::weight_groups;
use super::lanes::Lanes;
use super::shards::Shards;
use super::tree::{TreeSum, shard, tree_sums};
use crate::error::{ParallelError, Result};

/// What a bucket's length is a multiple of, beside the ranks, where it holds no gradients: 512 bytes.
const ALIGNMENT: usize = 128;

/// Who adds gradients over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Plimsoll, in the order of a fixed tree: the same bits on every grid.
    Tree,
    /// The transport, in the order that it likes: the same bits on the same grid.
    Library,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Reduction; 2] = [Reduction::Tree, Reduction::Library];

    /// Its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Tree => "tree",
            Reduction::Library => "nccl",
        }
    }
}

/// How gradients are reduced.
#[derive(Clone, Copy, Debug)]
pub struct ReductionOptions {
    /// This rank's lanes.
    pub lanes: Lanes,
    /// Data-parallel ranks.
    pub data: usize,
    /// Which of them this one is.
    pub rank: usize,
    /// The type of gradients: every lane's sum and every node of the tree is rounded to it. f32, or that of
    /// the weights.
    pub dtype: DType,
    /// A bucket is closed before it would exceed this.
    pub bucket_bytes: usize,
    /// Who adds.
    pub reduction: Reduction,
    /// Whether each rank gets only the sums that its part of the optimizer needs.
    pub sharded: bool,
    /// Whether the loss is added up here: it is where the model ends.
    pub loss: bool,
}

/// Second and later uses of a parameter, in use order: (piece, view of set 0).
type FurtherUses = Vec<(usize, Tensor)>;

/// Persistent gradient buffers of one rank and the state of the step in them.
///
/// In a step: for each of the rank's micro-batches in order, [`GradientReduction::sink`] is given to
/// backward, and [`GradientReduction::end_micro_batch`] gets the loss; then [`GradientReduction::finish`];
/// then the gradients can be read.
#[derive(Debug)]
pub struct GradientReduction {
    device: Device,
    options: ReductionOptions,
    layout: BucketLayout,
    /// By set, then bucket; after those of the layout there is one for the loss, in f32, where it is added
    /// up.
    sets: Vec<Vec<Tensor>>,
    scratch: Option<Scratch>,
    shards: Shards,
    weight_groups: Vec<Vec<usize>>,
    /// View of set 0 by piece: what the optimizer reads.
    gradients: Vec<Tensor>,
    further_uses: FurtherUses,
    names: Vec<String>,
    micro_batch: usize,
    /// Gradients that the current backward has yet to give, by bucket.
    missing: Vec<usize>,
    /// Elements of buckets that are full before the first goes to the other ranks.
    held: usize,
    /// Full buckets that have not gone yet.
    waiting: Vec<usize>,
}

/// For what the others send of one bucket: [`Reduction::Tree`] among several ranks.
#[derive(Debug)]
struct Scratch {
    gradients: Tensor,
    /// In f32, where the loss is added up.
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
    /// Takes the buffers for `parameters`. Errors: out of memory.
    pub fn new(device: &Device, parameters: &Parameters, options: ReductionOptions) -> Result<Self> {
        let layout = BucketLayout::of(parameters, options.dtype, options.bucket_bytes, options.data);
        let shards = match options.sharded {
            true => Shards::divided(parameters, &layout, options.data, options.rank),
            false => Shards::undivided(parameters),
        };
        let loss = options.loss.then_some(ALIGNMENT * options.data);
        let mut sets = Vec::new();
        for _ in 0..options.lanes.sets() {
            let request = Request::new(Category::Gradient, "gradient_bucket");
            let buckets = layout.elements.iter().map(|elements| (*elements, options.dtype));
            let buckets = buckets.chain(loss.map(|loss| (loss, DType::F32)));
            let set = buckets.map(|(elements, dtype)| Tensor::zeros(device, [elements], dtype, request));
            sets.push(set.collect::<tensor::Result<Vec<_>>>()?);
        }
        let scratch = match (options.reduction, options.data) {
            (Reduction::Library, _) | (_, 1) => None,
            (Reduction::Tree, _) => Some(Scratch::new(device, layout.largest(), options.dtype, loss)?),
        };
        let (gradients, further_uses) = views(parameters, &layout, &shards, &sets[0])?;
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
            scratch,
            shards,
            weight_groups,
            gradients,
            further_uses,
            names,
            micro_batch: 0,
            missing,
            held: 0,
            waiting: Vec::new(),
        })
    }

    /// Buckets are reduced while backward goes on, from when it has given this part of all gradients: each as
    /// soon as it is full at 0, as is so until this is called, and all of them when it is over at 1. No bit
    /// depends on it.
    pub fn reduce_from(&mut self, part: f64) {
        let all: usize = self.layout.elements.iter().sum();
        self.held = if part < 1.0 { (part * all as f64) as usize } else { usize::MAX };
    }

    /// What the ranks may reach in each other's memory ([`DataPlane::share`]): what they sum, and where the
    /// optimizer is divided the weights that they give each other; nothing where a library sums or there is
    /// one rank. The plane is to be dropped before this and the parameters.
    pub fn shared<'a>(&'a self, parameters: &'a Parameters) -> Vec<Region<'a>> {
        if self.scratch.is_none() {
            return Vec::new();
        }
        let weights = parameters.list().iter().map(|parameter| parameter.tensor.region());
        let weights = weights.filter(|_| self.shards.is_divided());
        self.sets[0].iter().map(Tensor::region).chain(weights).collect()
    }

    /// The sink for the next micro-batch's backward.
    pub fn sink<'a>(&'a mut self, plane: &'a mut dyn DataPlane) -> MicroBatchSink<'a> {
        self.missing.clone_from(&self.layout.members);
        MicroBatchSink { reduction: self, plane }
    }

    /// Whether the next micro-batch is the step's last, whose gradients go to the other ranks.
    pub fn reduces_next(&self) -> bool {
        self.options.data > 1 && self.micro_batch + 1 == self.options.lanes.micro_batches()
    }

    /// Ends a micro-batch, all gradients of which have come: adds its loss, in the same lanes and tree, where
    /// the loss is added up, and goes on to the next.
    pub fn end_micro_batch(&mut self, loss: Option<&Tensor>) -> Result<()> {
        if let Some(loss) = loss.filter(|_| self.options.loss) {
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
        }
        self.micro_batch += 1;
        Ok(())
    }

    /// Checks that the step's micro-batches have all been here. Errors: one that has not, a gradient that
    /// never came.
    pub fn check_complete(&self) -> Result<()> {
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
        Ok(())
    }

    /// Completes the step's sums: what is left to reduce, and the uses of parameters that are used more than
    /// once, added in the order of the uses. Errors: a gradient that never came, a collective's.
    pub fn finish(&mut self, plane: &mut dyn DataPlane) -> Result<()> {
        self.check_complete()?;
        let mut left = std::mem::take(&mut self.waiting);
        left.extend(self.options.loss.then_some(self.layout.elements.len()));
        self.reduce(&left, true, plane)?;
        let reduced = self.device.record(StreamKind::Reduce)?;
        self.device.wait(StreamKind::Compute, &reduced)?;
        for (piece, view) in &self.further_uses {
            ops::add::into(&self.gradients[*piece], view)?;
        }
        self.micro_batch = 0;
        Ok(())
    }

    /// Who keeps what.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The numbers of the parameters that travel together where ranks keep different parts of them, in the
    /// order in which forward comes to them.
    pub fn weight_groups(&self) -> &[Vec<usize>] {
        &self.weight_groups
    }

    /// The summed gradient of each of this rank's pieces, in their order; the next step overwrites them.
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients
    }

    /// The summed loss, one element, where it is added up; the next step overwrites it.
    pub fn loss(&self) -> Result<Option<Tensor>> {
        let bucket = self.sets[0].get(self.layout.elements.len());
        Ok(bucket.map(|bucket| bucket.view(0, [1])).transpose()?)
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
        if self.micro_batch + 1 < self.options.lanes.micro_batches() {
            return Ok(());
        }
        self.waiting.push(place.bucket);
        let buckets = self.layout.elements.iter().zip(&self.missing);
        let full: usize = buckets.filter(|(_, missing)| **missing == 0).map(|(elements, _)| elements).sum();
        if full < self.held {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let over = self.missing.iter().all(|missing| *missing == 0);
        self.reduce(&waiting, over, plane)
    }

    /// The tree's levels inside this rank.
    fn fold(&self, bucket: usize) -> Result<()> {
        let top = self.set();
        for level in (0..self.options.lanes.folds_after(self.lane())).map(|fold| top - fold) {
            ops::add::into(&self.sets[level - 1][bucket], &self.sets[level][bucket])?;
        }
        Ok(())
    }

    /// The sums of some buckets over ranks, on a stream of its own; `over`: backward is. Nothing writes to
    /// set 0 of a bucket from here to [`GradientReduction::finish`], after which compute work waits for this
    /// stream.
    fn reduce(&self, buckets: &[usize], over: bool, plane: &mut dyn DataPlane) -> Result<()> {
        const STREAM: StreamKind = StreamKind::Reduce;
        if buckets.is_empty() || self.options.data == 1 {
            return Ok(());
        }
        let filled = self.device.record(StreamKind::Compute)?;
        self.device.wait(STREAM, &filled)?;
        let Some(scratch) = &self.scratch else {
            return buckets.iter().try_for_each(|bucket| self.reduce_by_library(*bucket, plane));
        };
        let scratch = |bucket: &usize| {
            let scratch =
                scratch.loss.as_ref().filter(|_| self.is_loss(*bucket)).unwrap_or(&scratch.gradients);
            scratch.view(0, [self.sets[0][*bucket].elements()])
        };
        let scratch = buckets.iter().map(scratch).collect::<tensor::Result<Vec<_>>>()?;
        let sum = |(bucket, scratch): (&usize, _)| {
            let everywhere = !self.scatters(*bucket);
            TreeSum { bucket: &self.sets[0][*bucket], scratch, everywhere }
        };
        let sums: Vec<_> = buckets.iter().zip(&scratch).map(sum).collect();
        tree_sums(plane, &sums, over, STREAM)
    }

    fn reduce_by_library(&self, bucket: usize, plane: &mut dyn DataPlane) -> Result<()> {
        let (scatters, bucket) = (self.scatters(bucket), &self.sets[0][bucket]);
        if !scatters {
            return Ok(plane.all_reduce(bucket.region(), bucket.dtype(), StreamKind::Reduce)?);
        }
        let own = shard(plane, bucket, plane.rank())?;
        Ok(plane.reduce_scatter(bucket.region(), own.region(), bucket.dtype(), StreamKind::Reduce)?)
    }

    /// Whether it is the last bucket, which has no gradients.
    fn is_loss(&self, bucket: usize) -> bool {
        bucket == self.layout.elements.len()
    }

    /// Whether each rank needs no more than its part: every rank needs all of the loss.
    fn scatters(&self, bucket: usize) -> bool {
        self.shards.is_divided() && !self.is_loss(bucket)
    }
}

/// By piece, the gradient of its parameter's first use; and of each further use, the piece and the gradient.
/// Errors: a parameter without uses.
fn views(
    parameters: &Parameters,
    layout: &BucketLayout,
    shards: &Shards,
    set: &[Tensor],
) -> Result<(Vec<Tensor>, FurtherUses)> {
    let mut uses_of: Vec<Vec<Place>> = vec![Vec::new(); parameters.list().len()];
    for (used, place) in parameters.uses().iter().zip(&layout.places) {
        uses_of[used.parameter.0].push(*place);
    }
    let unused = parameters.list().iter().zip(&uses_of).find(|(_, places)| places.is_empty());
    if let Some((parameter, _)) = unused {
        return Err(ParallelError::MissingGradient { parameter: parameter.name.clone() });
    }
    let (mut first, mut further) = (Vec::new(), Vec::new());
    for (index, piece) in shards.own().iter().enumerate() {
        let shape = parameters.list()[piece.parameter].tensor.shape();
        for (number, place) in uses_of[piece.parameter].iter().enumerate() {
            let view = piece.of(&set[place.bucket].view(place.offset, shape)?)?;
            match number {
                0 => first.push(view),
                _ => further.push((index, view)),
            }
        }
    }
    Ok((first, further))
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
