//! Sums of weight gradients over the blocks of a value, in fixed trees: over shards that share a weight, then
//! over sequence pieces.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::mem::take;

use collective::tensors::{self, PendingSum};
use collective::{Axis, ProcessGroup};
use device::{Category, DType, Request};
use tensor::{Tensor, ops};

use super::pieces::Pieces;
use super::placement::BlockIndex;
use super::ranks::{TensorRanks, give};
use crate::error::{AutogradError, Result};
use crate::pass::Pass;
use crate::sink::{GradientSink, Target};
use crate::weight::{UseId, Weight};

const OPERATOR: &str = "gradient_sums";
/// Maximum number of sums over ranks that run concurrently with compute; enough for half a layer's weights.
const MOST_PENDING: usize = 3;

/// Sums of a backward pass's weight gradients over blocks.
#[derive(Debug)]
pub(crate) struct GradientSums {
    /// Number of local pieces.
    pieces: usize,
    tensor_ranks: TensorRanks,
    /// Ranks that hold the other pieces of the same sequences.
    context: Option<ProcessGroup>,
    copies: BTreeMap<(UseId, Option<usize>), Copies>,
    uses: BTreeMap<UseId, UseSums>,
    /// Sums over ranks in progress, oldest first.
    pending: VecDeque<(UseId, Target, PendingSum)>,
}

/// The f32 gradients of one use of a weight by the local shards, for one piece.
#[derive(Debug)]
struct Copies {
    weight: Weight,
    gradients: Vec<Option<Tensor>>,
}

/// Gradients of one use of a weight, summed over pieces.
#[derive(Debug)]
struct UseSums {
    /// Destination of the sum.
    target: Target,
    /// The gradient that a rule is computing.
    begun: Option<Tensor>,
    /// Sums of subtrees, by level and index, that wait for their sibling.
    subtrees: BTreeMap<(u32, usize), Tensor>,
}

impl GradientSums {
    /// Creates empty sums for a pass.
    pub(crate) fn of_pass(pass: &Pass) -> Self {
        let (pieces, sums_over_ranks) = match &pass.pieces {
            Some(Pieces { here, sums_over_ranks, .. }) => (here.len(), *sums_over_ranks),
            None => (0, false),
        };
        GradientSums {
            pieces,
            tensor_ranks: TensorRanks::of_pass(pass, false),
            context: pass.groups.along(Axis::Context).filter(|_| sums_over_ranks).cloned(),
            copies: BTreeMap::new(),
            uses: BTreeMap::new(),
            pending: VecDeque::new(),
        }
    }

    /// Calls `rule` with `sink`, or, for a rule of a block, with a sink that sums the block's gradients.
    pub(crate) fn with<T>(
        &mut self,
        block: Option<BlockIndex>,
        sink: &mut dyn GradientSink,
        rule: impl FnOnce(&mut dyn GradientSink) -> T,
    ) -> T {
        match block {
            Some(block) => rule(&mut BlockSink { sums: self, block, sink, open: 0, ready: Vec::new() }),
            None => rule(sink),
        }
    }

    /// Delivers all pending sums over ranks. Every backward pass ends with this call.
    pub(crate) fn finish(&mut self, sink: &mut dyn GradientSink) -> Result<()> {
        self.deliver(0, sink)
    }

    /// Delivers all pending sums over ranks except the last `kept`.
    fn deliver(&mut self, kept: usize, sink: &mut dyn GradientSink) -> Result<()> {
        while self.pending.len() > kept {
            let Some((use_id, target, sum)) = self.pending.pop_front() else { break };
            deliver(use_id, &target, &sum.wait(), sink)?;
        }
        Ok(())
    }

    /// Sums the gradients of shared weights over all shards, once all local shards have produced theirs. One
    /// sum over ranks covers all these weights.
    fn sums_of_copies(
        &mut self,
        uses: Vec<UseId>,
        piece: Option<usize>,
    ) -> Result<Vec<(UseId, Weight, Tensor)>> {
        let is_complete = |use_id: &UseId| {
            let copies = self.copies.get(&(*use_id, piece));
            copies.is_some_and(|copies| copies.gradients.iter().all(Option::is_some))
        };
        if !uses.iter().all(is_complete) {
            return Ok(Vec::new());
        }
        let mut weights = Vec::with_capacity(uses.len());
        let mut gradients = Vec::with_capacity(uses.len());
        for use_id in uses {
            let Some(copies) = self.copies.remove(&(use_id, piece)) else { continue };
            weights.push((use_id, copies.weight));
            gradients.push(copies.gradients.into_iter().flatten().collect::<Vec<_>>());
        }
        let sum = self.tensor_ranks.sum(packed(gradients)?, Request::new(Category::Gradient, OPERATOR))?;
        let mut first = 0;
        let part = |(use_id, weight): (UseId, Weight)| -> Result<_> {
            let gradient = sum.view(first, weight.shape())?;
            first += weight.shape().elements();
            Ok((use_id, weight, gradient))
        };
        weights.into_iter().map(part).collect()
    }

    /// Adds the gradient of a piece. Returns the sum over local pieces once all are added.
    fn sum_of_pieces(&mut self, use_id: UseId, piece: usize) -> Result<Option<(Target, Tensor)>> {
        let Some(sums) = self.uses.get_mut(&use_id) else { return Ok(None) };
        let Some(mut sum) = sums.begun.take() else { return Ok(None) };
        let mut level = 0;
        let mut number = piece;
        while 1 << level < self.pieces {
            let Some(other) = sums.subtrees.remove(&(level, number ^ 1)) else {
                sums.subtrees.insert((level, number), sum);
                return Ok(None);
            };
            let (first, second) = if number.is_multiple_of(2) { (sum, other) } else { (other, sum) };
            ops::add::into(&first, &second)?;
            (sum, level, number) = (first, level + 1, number / 2);
        }
        Ok(self.uses.remove(&use_id).map(|UseSums { target, .. }| (target, sum)))
    }
}

/// Concatenates, for each shard, the gradients of all weights; `gradients` is by weight and shard. A single
/// weight's gradients are returned unchanged.
fn packed(mut gradients: Vec<Vec<Tensor>>) -> Result<Vec<Tensor>> {
    let (Some(first), 2..) = (gradients.first(), gradients.len()) else {
        return Ok(gradients.pop().unwrap_or_default());
    };
    let elements = gradients.iter().filter_map(|shards| shards.first()).map(Tensor::elements).sum::<usize>();
    let shard = |shard: usize| -> Result<Tensor> {
        let request = Request::new(Category::Gradient, OPERATOR);
        let all = Tensor::empty(first[shard].device(), [elements], DType::F32, request)?;
        let mut begin = 0;
        for gradient in gradients.iter().filter_map(|shards| shards.get(shard)) {
            all.view(begin, gradient.shape())?.copy_from(gradient)?;
            begin += gradient.elements();
        }
        Ok(all)
    };
    (0..first.len()).map(shard).collect()
}

/// Adds a sum over all pieces to its target.
fn deliver(use_id: UseId, target: &Target, sum: &Tensor, sink: &mut dyn GradientSink) -> Result<()> {
    match target.accumulate {
        true => ops::add::into(&target.tensor, sum)?,
        false => target.tensor.copy_from(sum)?,
    }
    sink.ready(use_id)
}

/// The sink for rules of one block.
struct BlockSink<'a> {
    sums: &'a mut GradientSums,
    block: BlockIndex,
    sink: &'a mut dyn GradientSink,
    /// Number of shared weights that have a target but no complete gradient.
    open: usize,
    /// Shared weights whose gradients are complete but not delivered, because others are still open.
    ready: Vec<UseId>,
}

impl BlockSink<'_> {
    /// Returns the target of this piece's gradient, or of the gradient of whole sequences.
    fn piece_target(&mut self, use_id: UseId, weight: &Weight) -> Result<Target> {
        if self.block.piece.is_none() {
            return self.sink.target(use_id, weight);
        }
        let sums = match self.sums.uses.entry(use_id) {
            Entry::Occupied(sums) => sums.into_mut(),
            Entry::Vacant(vacant) => {
                let target = self.sink.target(use_id, weight)?;
                vacant.insert(UseSums { target, begun: None, subtrees: BTreeMap::new() })
            }
        };
        // Each sum is rounded to the gradient's dtype, like sums of lanes.
        let dtype = sums.target.tensor.dtype();
        let request = Request::new(Category::Gradient, OPERATOR);
        let tensor = Tensor::empty(weight.device(), weight.shape(), dtype, request)?;
        sums.begun = Some(tensor.clone());
        Ok(Target { tensor, accumulate: false })
    }

    fn piece_ready(&mut self, use_id: UseId) -> Result<()> {
        let Some(piece) = self.block.piece else { return self.sink.ready(use_id) };
        let Some((target, sum)) = self.sums.sum_of_pieces(use_id, piece)? else { return Ok(()) };
        let Some(group) = &self.sums.context else { return deliver(use_id, &target, &sum, self.sink) };
        let request = Request::new(Category::Gradient, OPERATOR);
        let failed = |source| AutogradError::Collective { operator: OPERATOR, source };
        let sum = tensors::begin_all_reduce(sum, group, request).map_err(failed)?;
        self.sums.pending.push_back((use_id, target, sum));
        self.sums.deliver(MOST_PENDING, self.sink)
    }
}

impl GradientSink for BlockSink<'_> {
    fn target(&mut self, use_id: UseId, weight: &Weight) -> Result<Target> {
        if weight.copies() == 0 {
            return self.piece_target(use_id, weight);
        }
        let request = Request::new(Category::Gradient, OPERATOR);
        let own = Tensor::empty(weight.device(), weight.shape(), DType::F32, request)?;
        let copies = self
            .sums
            .copies
            .entry((use_id, self.block.piece))
            .or_insert_with(|| Copies { weight: weight.clone(), gradients: vec![None; weight.copies()] });
        if let Some(gradient) = copies.gradients.get_mut(self.block.shard) {
            *gradient = Some(own.clone());
        }
        self.open += 1;
        Ok(Target { tensor: own, accumulate: false })
    }

    fn ready(&mut self, use_id: UseId) -> Result<()> {
        if !self.sums.copies.contains_key(&(use_id, self.block.piece)) {
            return self.piece_ready(use_id);
        }
        self.ready.push(use_id);
        if self.ready.len() < self.open {
            return Ok(());
        }
        self.open = 0;
        for (use_id, weight, sum) in self.sums.sums_of_copies(take(&mut self.ready), self.block.piece)? {
            give(&sum, &self.piece_target(use_id, &weight)?)?;
            drop(sum);
            self.piece_ready(use_id)?;
        }
        Ok(())
    }
}
