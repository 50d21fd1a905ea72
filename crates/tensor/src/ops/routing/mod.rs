//! Routing of rows to experts: each row goes to the experts with its largest scores, with weights.
//!
//! A dropless mixture (Gale et al., *MegaBlocks*, 2022) has rows · `per_token` slots whatever the routing, so
//! that all shapes are known before it. Scores and weights are f32; of equal scores the first expert's ranks
//! higher. Slots are ordered by expert, then by row, then by choice. With an alignment, each expert's first
//! slot is a multiple of it: slots of zeros fill the gaps, and all remaining zeros belong to the last expert.

mod cpu;
pub(super) mod cuda;
mod loads;
mod routes;
mod settings;

pub use loads::{move_correction, sum_loads};
pub use routes::{NONE, Routes};
pub use settings::{Balance, Balancing, Routing, ScoreFunction, TokenRows};

use device::{Backend, Category, DType, Request};

use super::check;
use crate::{Result, Tensor};

/// Routes each row of `logits_te [rows, experts]` f32. `correction_e [experts]` f32 is added to scores when
/// experts are chosen, but not to weights. Adds the number of rows of each expert to `loads_e [experts]` u32,
/// if present. With `tokens`, only rows that are tokens are counted.
pub fn forward(
    logits_te: &Tensor,
    correction_e: Option<&Tensor>,
    routing: &Routing,
    loads_e: Option<&Tensor>,
    tokens: Option<&TokenRows>,
) -> Result<Routes> {
    const OPERATOR: &str = "routing.forward";
    let rows = check_logits(OPERATOR, logits_te, routing)?;
    let state = [("correction", correction_e, DType::F32), ("loads", loads_e, DType::U32)];
    for (operand, tensor, dtype) in state {
        if let Some(tensor) = tensor {
            check::dtype(OPERATOR, operand, tensor, dtype)?;
            check::shape(OPERATOR, operand, tensor, [routing.experts])?;
        }
    }
    check_tokens(OPERATOR, tokens, rows)?;
    let device = logits_te.device();
    let choices = [rows, routing.per_token];
    let request = Request::new(Category::Activation, OPERATOR);
    let new = |shape: crate::Shape, dtype| Tensor::empty(device, shape, dtype, request);
    let routes = Routes {
        weights: new(choices.into(), DType::F32)?,
        choices: new(choices.into(), DType::U32)?,
        slots: new(choices.into(), DType::U32)?,
        sources: new([routing.slots(rows)].into(), DType::U32)?,
        offsets: new([routing.experts + 1].into(), DType::U32)?,
        counts: new([routing.experts].into(), DType::U32)?,
        token_counts: tokens.map(|_| new([routing.experts + 1].into(), DType::U32)).transpose()?,
    };
    let counts = cuda::workspace_bytes(routes.choices.elements(), routing.experts);
    let counts = Tensor::workspace(device, OPERATOR, counts)?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward((logits_te, correction_e), routing, loads_e, tokens, &routes)?,
        Backend::Cuda => {
            cuda::forward(OPERATOR, (logits_te, correction_e), routing, (loads_e, &counts, tokens), &routes)?;
        }
    }
    Ok(routes)
}

/// Computes the gradient of the logits from the gradient of the weights, `dw_tp [rows, per_token]` f32. Adds
/// the gradient of the balancing losses.
pub fn backward(
    dw_tp: &Tensor,
    logits_te: &Tensor,
    routes: &Routes,
    routing: &Routing,
    balancing: Balancing<'_>,
) -> Result<Tensor> {
    const OPERATOR: &str = "routing.backward";
    let rows = check_logits(OPERATOR, logits_te, routing)?;
    check::f32s(OPERATOR, &[("dw", dw_tp)])?;
    check::shape(OPERATOR, "dw", dw_tp, [rows, routing.per_token])?;
    check_tokens(OPERATOR, balancing.tokens, rows)?;
    let gradient_te = logits_te.like(DType::F32, Request::new(Category::ActivationGradient, OPERATOR))?;
    match logits_te.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward((dw_tp, logits_te), routes, (routing, balancing), &gradient_te)?,
        Backend::Cuda => {
            cuda::backward(OPERATOR, (dw_tp, logits_te), routes, (routing, balancing), &gradient_te)?
        }
    }
    Ok(gradient_te)
}

fn check_tokens(operator: &'static str, tokens: Option<&TokenRows>, rows: usize) -> Result<()> {
    let Some(TokenRows { mask, count }) = tokens else { return Ok(()) };
    for (operand, tensor, elements) in [("mask", mask, rows), ("count", count, 1)] {
        check::dtype(operator, operand, tensor, DType::U32)?;
        check::elements(operator, operand, tensor, elements)?;
    }
    Ok(())
}

fn check_logits(operator: &'static str, logits_te: &Tensor, routing: &Routing) -> Result<usize> {
    check::f32s(operator, &[("logits", logits_te)])?;
    check::rank(operator, "logits", logits_te, 2)?;
    check::shape(operator, "logits", logits_te, [logits_te.shape().rows(), routing.experts])?;
    let most = routing.experts / routing.groups.max(1) * routing.groups_per_token;
    if routing.per_token == 0 || routing.per_token > most {
        let expected = format!("at least {} experts to choose from", routing.per_token);
        return Err(check::wrong(operator, "logits", logits_te, expected));
    }
    Ok(logits_te.shape().rows())
}
