//! The input of a layer that is divided in lanes: every lane takes all rows.

use device::{Category, DType, Request};
use tensor::Tensor;

use super::autocast;
use super::lanes::LanePlane;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved};
use crate::tape::{Tape, Var};

/// Backward of [`lane_inputs`]: the gradients of the lanes are added in a fixed tree; those in f32 are
/// rounded once, and others are added in their type.
#[derive(Debug)]
pub struct LaneInputsRule {
    planes: LanePlane,
    shape: tensor::Shape,
    dtype: DType,
}

/// Returns the input of each of `lanes` lanes that are here: all rows of `x`, which are divided along
/// [`collective::Axis::Tensor`], as sequences of `time` rows; `x` itself if its rows are not divided.
///
/// # Errors
/// Rows that are no sequences; out of memory; a failed collective.
pub fn lane_inputs(tape: &Tape, x: Var, lanes: usize, time: usize) -> Result<Vec<Var>> {
    const OPERATOR: &str = "lane_inputs";
    let [x] = autocast(tape, OPERATOR, [x])?;
    tape.begin(OPERATOR)?;
    let planes = LanePlane::of(tape);
    let (source, x) = (x.source(), x.into_tensor());
    let (shape, dtype) = (x.shape(), x.dtype());
    let all = planes.gather_rows(&x, Request::new(Category::Activation, OPERATOR))?;
    let all = match all.shape() == shape {
        true => all,
        false => all.reshape([all.shape().rows() / time, time, all.shape().columns()])?,
    };
    tape.record(&[source], vec![all; lanes], || LaneInputsRule { planes, shape, dtype })
}

impl Rule for LaneInputsRule {
    fn operator(&self) -> &'static str {
        "lane_inputs"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let request = Request::new(Category::ActivationGradient, "lane_inputs");
        let parts = outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        let sum = match parts.iter().all(|part| part.dtype() == DType::F32) {
            true => self.planes.rounded_sum_rows(parts, None, self.dtype, request)?,
            false => self.planes.sum_rows(parts, request)?,
        };
        Ok(vec![Some(sum.reshape(self.shape)?)])
    }
}
