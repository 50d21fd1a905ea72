//! The routing of rows to experts: each row goes to the experts with its largest scores, with weights.
//!
//! A dropless mixture (Gale et al., *MegaBlocks*, 2022) has rows · `per_token` rows of experts whatever the
//! routing, so that all shapes are known before it. Scores and weights are f32; of equal scores the first
//! expert's is larger. Rows of experts are ordered by expert, then by row, then by choice. Where the first
//! row of each expert is a multiple of an alignment, rows of zeros fill the gaps; the last expert has the
//! rest of them.

mod cpu;
pub(super) mod cuda;
mod loads;
mod routes;
mod settings;

pub use loads::{move_correction, sum_loads};
pub use routes::{NONE, Routes};
pub use settings::{Balance, Routing, ScoreFunction};

use device::{Backend, Category, DType, Request};

use super::check;
use crate::{Result, Tensor};

/// Routes each row of `logits [rows, experts]` f32. `correction [experts]` f32 is added to the scores by
/// which experts are chosen, and not to weights. Adds the number of rows of each expert to `loads [experts]`
/// u32, if there are any.
///
/// # Errors
/// Shapes or types that do not agree, out of memory.
pub fn forward(
    logits: &Tensor,
    correction: Option<&Tensor>,
    routing: &Routing,
    loads: Option<&Tensor>,
) -> Result<Routes> {
    const OPERATOR: &str = "routing.forward";
    let rows = check_logits(OPERATOR, logits, routing)?;
    let state = [("correction", correction, DType::F32), ("loads", loads, DType::U32)];
    for (operand, tensor, dtype) in state {
        if let Some(tensor) = tensor {
            check::dtype(OPERATOR, operand, tensor, dtype)?;
            check::shape(OPERATOR, operand, tensor, [routing.experts])?;
        }
    }
    let (device, choices) = (logits.device(), [rows, routing.per_token]);
    let request = Request::new(Category::Activation, OPERATOR);
    let new = |shape: crate::Shape, dtype| Tensor::empty(device, shape, dtype, request);
    let routes = Routes {
        weights: new(choices.into(), DType::F32)?,
        choices: new(choices.into(), DType::U32)?,
        slots: new(choices.into(), DType::U32)?,
        sources: new([routing.slots(rows)].into(), DType::U32)?,
        offsets: new([routing.experts + 1].into(), DType::U32)?,
        counts: new([routing.experts].into(), DType::U32)?,
    };
    let counts = cuda::workspace_bytes(routes.choices.elements(), routing.experts);
    let counts = Tensor::workspace(device, OPERATOR, counts)?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(logits, correction, routing, loads, &routes)?,
        Backend::Cuda => {
            cuda::forward(OPERATOR, (logits, correction), routing, (loads, &counts), &routes)?;
        }
    }
    Ok(routes)
}

/// Computes the gradient of the logits from that of the weights, `dw [rows, per_token]` f32, and adds that of
/// the balancing losses, multiplied by a factor on the device, `[1]` f32, if there is one.
///
/// # Errors
/// Shapes or types that do not agree, out of memory.
pub fn backward(
    dw: &Tensor,
    logits: &Tensor,
    routes: &Routes,
    routing: &Routing,
    balance: Option<(Balance, Option<&Tensor>)>,
) -> Result<Tensor> {
    const OPERATOR: &str = "routing.backward";
    let rows = check_logits(OPERATOR, logits, routing)?;
    check::f32s(OPERATOR, &[("dw", dw)])?;
    check::shape(OPERATOR, "dw", dw, [rows, routing.per_token])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradient = Tensor::empty(logits.device(), logits.shape(), DType::F32, request)?;
    match logits.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward(dw, logits, routes, (routing, balance), &gradient)?,
        Backend::Cuda => cuda::backward(OPERATOR, (dw, logits), routes, (routing, balance), &gradient)?,
    }
    Ok(gradient)
}

/// Checks logits and returns their number of rows.
fn check_logits(operator: &'static str, logits: &Tensor, routing: &Routing) -> Result<usize> {
    check::f32s(operator, &[("logits", logits)])?;
    check::rank(operator, "logits", logits, 2)?;
    check::shape(operator, "logits", logits, [logits.shape().rows(), routing.experts])?;
    let most = routing.experts / routing.groups.max(1) * routing.groups_per_token;
    if routing.per_token == 0 || routing.per_token > most {
        let expected = format!("at least {} experts to choose from", routing.per_token);
        return Err(check::wrong(operator, "logits", logits, expected));
    }
    Ok(logits.shape().rows())
}
