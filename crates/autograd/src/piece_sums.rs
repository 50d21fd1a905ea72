//! Weight gradients of pieces of sequences: their sum over all pieces, in a fixed tree.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use collective::tensors::{self, PendingSum};
use collective::{Axis, SharedPlane};
use device::{Category, Request};
use tensor::{Tensor, ops};

use crate::error::{AutogradError, Result};
use crate::pass::Pass;
use crate::pieces::Pieces;
use crate::sink::{GradientSink, Target};
use crate::weight::{UseId, Weight};

const OPERATOR: &str = "piece_gradients";
/// Most sums over ranks that are made beside compute: enough for the weights of half a layer.
const MOST_PENDING: usize = 3;

/// The sums over pieces of the weight gradients of a backward pass.
#[derive(Debug, Default)]
pub(crate) struct PieceSums {
    /// Number of pieces that are here.
    here: usize,
    /// The plane of the ranks with the other pieces.
    plane: Option<SharedPlane>,
    uses: BTreeMap<UseId, UseSums>,
    /// The sums over ranks that have begun, in that order.
    pending: VecDeque<(UseId, Target, PendingSum)>,
}

/// The gradients of one use of a weight.
#[derive(Debug)]
struct UseSums {
    /// Destination of the sum.
    target: Target,
    /// The gradient that a rule computes now.
    begun: Option<Tensor>,
    /// The sums of subtrees, by level and number, that wait for the other half of the subtree above.
    subtrees: BTreeMap<(u32, usize), Tensor>,
}

impl PieceSums {
    /// Returns empty sums of a pass.
    pub(crate) fn of(pass: &Pass) -> Self {
        let Some(Pieces { here, sums_over_ranks, .. }) = &pass.pieces else { return Self::default() };
        let plane = pass.planes.along(Axis::Context).filter(|_| *sums_over_ranks).cloned();
        PieceSums { here: here.len(), plane, uses: BTreeMap::new(), pending: VecDeque::new() }
    }

    /// Calls `rule` with `sink`, for a rule of a piece with a sink of the piece's gradients.
    pub(crate) fn with<T>(
        &mut self,
        piece: Option<usize>,
        sink: &mut dyn GradientSink,
        rule: impl FnOnce(&mut dyn GradientSink) -> T,
    ) -> T {
        match piece {
            Some(piece) => rule(&mut PieceSink { sums: self, piece, sink }),
            None => rule(sink),
        }
    }

    /// Delivers the sums over ranks that have begun. Every backward pass ends with it.
    pub(crate) fn finish(&mut self, sink: &mut dyn GradientSink) -> Result<()> {
        self.deliver(0, sink)
    }

    /// Delivers all sums over ranks but the last `kept`.
    fn deliver(&mut self, kept: usize, sink: &mut dyn GradientSink) -> Result<()> {
        while self.pending.len() > kept {
            let Some((use_id, target, sum)) = self.pending.pop_front() else { break };
            deliver(use_id, &target, &sum.wait(), sink)?;
        }
        Ok(())
    }

    /// Adds the gradient of a piece; returns the sum of the pieces that are here once all have theirs.
    fn add(&mut self, use_id: UseId, piece: usize) -> Result<Option<(Target, Tensor)>> {
        let Some(sums) = self.uses.get_mut(&use_id) else { return Ok(None) };
        let Some(mut sum) = sums.begun.take() else { return Ok(None) };
        let (mut level, mut number) = (0, piece);
        while 1 << level < self.here {
            let Some(other) = sums.subtrees.remove(&(level, number ^ 1)) else {
                sums.subtrees.insert((level, number), sum);
                return Ok(None);
            };
            let (first, second) = if number % 2 == 0 { (sum, other) } else { (other, sum) };
            ops::add::into(&first, &second)?;
            (sum, level, number) = (first, level + 1, number / 2);
        }
        Ok(self.uses.remove(&use_id).map(|UseSums { target, .. }| (target, sum)))
    }
}

/// Adds a sum over all pieces to its target.
fn deliver(use_id: UseId, target: &Target, sum: &Tensor, sink: &mut dyn GradientSink) -> Result<()> {
    match target.accumulate {
        true => ops::add::into(&target.tensor, sum)?,
        false => target.tensor.copy_from(sum)?,
    }
    sink.ready(use_id)
}

/// The sink of the rules of one piece.
struct PieceSink<'a> {
    sums: &'a mut PieceSums,
    piece: usize,
    sink: &'a mut dyn GradientSink,
}

impl GradientSink for PieceSink<'_> {
    fn target(&mut self, use_id: UseId, weight: &Weight) -> Result<Target> {
        let sums = match self.sums.uses.entry(use_id) {
            Entry::Occupied(sums) => sums.into_mut(),
            Entry::Vacant(vacant) => {
                let target = self.sink.target(use_id, weight)?;
                vacant.insert(UseSums { target, begun: None, subtrees: BTreeMap::new() })
            }
        };
        // Each sum is rounded to the gradient's type, as those of lanes are.
        let (dtype, request) = (sums.target.tensor.dtype(), Request::new(Category::Gradient, OPERATOR));
        let tensor = Tensor::empty(weight.device(), weight.shape(), dtype, request)?;
        sums.begun = Some(tensor.clone());
        Ok(Target { tensor, accumulate: false })
    }

    fn ready(&mut self, use_id: UseId) -> Result<()> {
        let Some((target, sum)) = self.sums.add(use_id, self.piece)? else { return Ok(()) };
        let Some(plane) = &self.sums.plane else { return deliver(use_id, &target, &sum, self.sink) };
        let request = Request::new(Category::Gradient, OPERATOR);
        let of = |source| AutogradError::Collective { operator: OPERATOR, source };
        let sum = tensors::begin_all_reduce(sum, &mut plane.clone(), request).map_err(of)?;
        self.sums.pending.push_back((use_id, target, sum));
        self.sums.deliver(MOST_PENDING, self.sink)
    }
}
