//! Weight gradients of pieces of sequences: their sum over all pieces, in a fixed tree.

use std::collections::BTreeMap;

use collective::{Axis, SharedPlane, tensors};
use device::{Category, DType, Request};
use tensor::{Tensor, ops};

use crate::error::{AutogradError, Result};
use crate::ops::give;
use crate::pass::Pass;
use crate::sink::{GradientSink, Target};
use crate::weight::{UseId, Weight};

const OPERATOR: &str = "piece_gradients";

/// The sums over pieces of the weight gradients of a backward pass.
#[derive(Debug, Default)]
pub(crate) struct PieceSums {
    /// Number of pieces that are here.
    here: usize,
    /// The plane of the ranks with the other pieces.
    plane: Option<SharedPlane>,
    uses: BTreeMap<UseId, UseSums>,
}

/// The gradients of one use of a weight.
#[derive(Debug)]
struct UseSums {
    weight: Weight,
    /// The gradient that a rule computes now.
    begun: Option<Tensor>,
    /// The sums of subtrees, by level and number, that wait for the other half of the subtree above.
    subtrees: BTreeMap<(u32, usize), Tensor>,
}

impl PieceSums {
    /// Returns empty sums of a pass.
    pub(crate) fn of(pass: &Pass) -> Self {
        let here = pass.pieces.as_ref().map_or(0, |pieces| pieces.here.len());
        PieceSums { here, plane: pass.planes.along(Axis::Context).cloned(), uses: BTreeMap::new() }
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

    /// Adds the gradient of a piece; returns the sum over all pieces once those that are here have theirs.
    fn add(&mut self, use_id: UseId, piece: usize) -> Result<Option<(Weight, Tensor)>> {
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
        let weight = sums.weight.clone();
        self.uses.remove(&use_id);
        if let Some(plane) = &self.plane {
            let request = Request::new(Category::Gradient, OPERATOR);
            let of = |source| AutogradError::Collective { operator: OPERATOR, source };
            sum = tensors::all_reduce(&sum, &mut plane.clone(), request).map_err(of)?;
        }
        Ok(Some((weight, sum)))
    }
}

/// The sink of the rules of one piece.
struct PieceSink<'a> {
    sums: &'a mut PieceSums,
    piece: usize,
    sink: &'a mut dyn GradientSink,
}

impl GradientSink for PieceSink<'_> {
    fn target(&mut self, use_id: UseId, weight: &Weight) -> Result<Target> {
        let request = Request::new(Category::Gradient, OPERATOR);
        let tensor = Tensor::empty(weight.device(), weight.shape(), DType::F32, request)?;
        let new = || UseSums { weight: weight.clone(), begun: None, subtrees: BTreeMap::new() };
        self.sums.uses.entry(use_id).or_insert_with(new).begun = Some(tensor.clone());
        Ok(Target { tensor, accumulate: false })
    }

    fn ready(&mut self, use_id: UseId) -> Result<()> {
        let Some((weight, sum)) = self.sums.add(use_id, self.piece)? else { return Ok(()) };
        give(&sum, &self.sink.target(use_id, &weight)?)?;
        self.sink.ready(use_id)
    }
}
