//! The gradient of a parameter that all lanes of a layer use: the sum of those of the lanes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use device::{Category, DType, Request};
use tensor::Tensor;

use super::lanes::{LanePlane, give};
use crate::error::Result;
use crate::sink::{GradientSink, Target, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// A lane's share in the gradients of parameters that all lanes of a layer use. Clones for other lanes share
/// the gradients.
#[derive(Clone, Debug)]
pub struct LaneShare {
    gradients: Rc<RefCell<ByPiece>>,
    lanes: usize,
    lane: usize,
}

/// Gradients of the lanes that are here and whose backward has run, by the piece of sequences.
type ByPiece = BTreeMap<Option<usize>, Vec<Option<Tensor>>>;

impl LaneShare {
    /// Returns the share of each of `lanes` lanes that are here.
    #[must_use]
    pub fn of_lanes(lanes: usize) -> Vec<Self> {
        let gradients = Rc::<RefCell<ByPiece>>::default();
        (0..lanes).map(|lane| LaneShare { gradients: Rc::clone(&gradients), lanes, lane }).collect()
    }

    /// Adds the gradient of this lane, f32, for `piece`. Returns the sum over all lanes once all that are
    /// here have theirs.
    ///
    /// # Errors
    /// Out of memory; a failed collective.
    pub(super) fn add(
        &self,
        (gradient, piece): (Tensor, Option<usize>),
        planes: &LanePlane,
        request: Request,
    ) -> Result<Option<Tensor>> {
        let mut of_pieces = self.gradients.borrow_mut();
        let gradients = of_pieces.entry(piece).or_insert_with(|| vec![None; self.lanes]);
        if let Some(own) = gradients.get_mut(self.lane) {
            *own = Some(gradient);
        }
        if gradients.iter().any(Option::is_none) {
            return Ok(None);
        }
        let parts: Vec<Tensor> = gradients.iter_mut().filter_map(Option::take).collect();
        planes.sum(parts, request).map(Some)
    }
}

/// A call of a lane, for the gradients of parameters that all lanes use.
#[derive(Clone, Debug)]
pub(super) struct LaneCall {
    planes: LanePlane,
    piece: Option<usize>,
}

impl LaneCall {
    pub(super) fn of(tape: &Tape) -> Self {
        LaneCall { planes: LanePlane::of(tape), piece: tape.piece() }
    }

    /// Gives `weight` the sum of the gradients of all lanes, once all that are here have theirs. `compute`
    /// writes that of this lane, in f32.
    ///
    /// # Errors
    /// Errors of `compute`; out of memory; a failed collective.
    pub(super) fn sum(
        &self,
        sink: &mut dyn GradientSink,
        (weight, share): (&Weight, &LaneShare),
        compute: impl FnOnce(&Target) -> tensor::Result<()>,
    ) -> Result<()> {
        if !weight.is_trained() {
            return Ok(());
        }
        let request = Request::new(Category::Gradient, "lane_gradient");
        let tensor = Tensor::empty(weight.device(), weight.shape(), DType::F32, request)?;
        let own = Target { tensor, accumulate: false };
        compute(&own)?;
        let Some(sum) = share.add((own.tensor, self.piece), &self.planes, request)? else { return Ok(()) };
        if let Some(target) = target(sink, weight)? {
            give(&sum, &target)?;
        }
        ready(sink, weight)
    }
}
