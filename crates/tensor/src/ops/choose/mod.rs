//! The next token of each sequence: the likeliest, or one drawn by its probability.
//!
//! A token is drawn by the largest of score + Gumbel noise (Gumbel, *Statistical Theory of Extreme Values*,
//! 1954): its probability is the softmax of the scores. The noise is a function of the row's key, the number
//! of the draw and the token, so that a row's draws do not depend on other rows.

mod choice;
mod cpu;
pub(crate) mod cuda;

pub use choice::Choice;

use device::{Backend, DType};

use super::check;
use crate::{Result, Tensor};

/// Rows of the array of draws: the number of the draw, and both words of the row's key.
pub const DRAW_ROWS: usize = 3;

/// Words of a row of `seen`, a bit for each token.
#[must_use]
pub fn seen_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(32)
}

/// Chooses the token after each of the first rows of `logits [rows, 1, vocabulary]`, f32 or bf16, as many as
/// `chosen [count]` u32 has elements, which become the tokens. `draws [3, rows]` u32 states the rows' draws.
/// With tokens, `tokens [rows, 1]` u32 are added to `seen [count, seen_words(vocabulary)]` u32 before the
/// penalty applies to it. A GPU computes rows without limits in slices, whose results are a workspace.
pub fn forward(
    logits: &Tensor,
    draws: &Tensor,
    seen: Option<(&Tensor, &Tensor)>,
    choice: Choice,
    chosen: &Tensor,
) -> Result<()> {
    const OPERATOR: &str = "choose.forward";
    check::computed(OPERATOR, &[("logits", logits)])?;
    check::rank(OPERATOR, "logits", logits, 3)?;
    let rows = logits.shape().rows();
    let vocabulary = logits.shape().columns();
    check::dtype(OPERATOR, "draws", draws, DType::U32)?;
    check::shape(OPERATOR, "draws", draws, [DRAW_ROWS, rows])?;
    check::dtype(OPERATOR, "chosen", chosen, DType::U32)?;
    check::rank(OPERATOR, "chosen", chosen, 1)?;
    let count = chosen.elements();
    if count > rows {
        return Err(check::wrong(OPERATOR, "logits", logits, format!("at least {count} rows")));
    }
    if let Some((tokens, seen)) = seen {
        check::dtype(OPERATOR, "tokens", tokens, DType::U32)?;
        check::shape(OPERATOR, "tokens", tokens, [rows, 1])?;
        check::dtype(OPERATOR, "seen", seen, DType::U32)?;
        check::shape(OPERATOR, "seen", seen, [count, seen_words(vocabulary)])?;
    }
    let in_slices = logits.device().is_cuda_like() && !choice.has_limits(vocabulary);
    let results = if in_slices { Some(cuda::results(OPERATOR, logits, count)?) } else { None };
    match logits.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::forward(logits, draws, seen, choice, chosen),
        Backend::Cuda => cuda::forward(OPERATOR, logits, draws, seen, choice, results.as_ref(), chosen),
    }
}
