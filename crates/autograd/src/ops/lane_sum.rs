//! The output of a layer that is divided in lanes: the sum over all lanes.

use device::{Category, DType, Request};
use tensor::{Shape, Tensor, ops};

use super::lanes::LanePlane;
use super::{named, only, values_of};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, ready, target};
use crate::tape::{Source, Tape, Var};
use crate::weight::Weight;

/// Backward of [`lane_sum`]: every lane has the output's gradient.
#[derive(Debug)]
pub struct LaneSumRule {
    planes: LanePlane,
    lanes: usize,
    /// Shape of a lane's result.
    shape: Shape,
    bias: Option<Weight>,
    /// The gradient of all rows, from the input half to the weight half, if the bias is trained.
    gradient: Option<Tensor>,
}

/// Adds `parts`, f32 results `[.., width]` of the lanes that are here, and those of the other lanes in a
/// fixed tree, then `bias [width]`, and rounds once to `dtype`. Of rows that are divided along
/// [`collective::Axis::Tensor`], returns those that are here, `[rows, width]`.
///
/// # Errors
/// No part; shapes or types that do not agree; out of memory; a failed collective.
pub fn lane_sum(tape: &Tape, parts: Vec<Var>, bias: Option<&Weight>, dtype: DType) -> Result<Var> {
    const OPERATOR: &str = "lane_sum";
    tape.begin(OPERATOR)?;
    let (planes, lanes) = (LanePlane::of(tape), parts.len());
    let dtype = tape.pass().autocast.as_ref().map_or(dtype, |autocast| autocast.half);
    let sources: Vec<Source> = parts.iter().map(Var::source).collect();
    let parts: Vec<Tensor> = parts.into_iter().map(Var::into_tensor).collect();
    let shape = parts.first().map_or(Shape::from([0]), Tensor::shape);
    let request = Request::new(Category::Activation, OPERATOR);
    let output = match (tape.reads_output(), parts.first()) {
        // Nothing reads the output of a recomputed segment.
        (false, Some(part)) => Tensor::empty(part.device(), planes.rows_here(part), dtype, request)?,
        _ => {
            let bias = named(OPERATOR, values_of(bias, dtype))?;
            planes.rounded_sum_rows(parts, bias.as_ref(), dtype, request)?
        }
    };
    let bias = bias.cloned();
    tape.record_one(&sources, output, || LaneSumRule { planes, lanes, shape, bias, gradient: None })
}

impl Rule for LaneSumRule {
    fn operator(&self) -> &'static str {
        "lane_sum"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn has_weights(&self) -> bool {
        self.bias.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let request = Request::new(Category::ActivationGradient, "lane_sum");
        let gradient = self.planes.gather_rows(&only(outputs)?, request)?.reshape(self.shape)?;
        self.gradient = self.has_weights().then(|| gradient.clone());
        Ok(vec![Some(gradient); self.lanes])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let (Some(gradient), Some(bias)) = (&self.gradient, &self.bias) else { return Ok(()) };
        if let Some(target) = target(sink, bias)? {
            ops::linear::backward_bias(gradient, &target)?;
        }
        ready(sink, bias)
    }
}
