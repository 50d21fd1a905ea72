//! Sampling: chooses the next token of each sequence, the likeliest or one drawn by its probability.
//!
//! The drawn token maximises score + Gumbel noise (Gumbel, *Statistical Theory of Extreme Values*, 1954), so
//! that its probability is the softmax of the scores. The noise is a function of the row's key, the number of
//! the draw and the token, so a row's draws do not depend on other rows.

mod choice;
mod cpu;
pub(crate) mod cuda;

pub use choice::Choice;

use device::{Backend, DType};

use super::check;
use crate::{Result, Tensor};

/// Rows of the array `draws`: the number of the draw, and the two words of the row's key.
pub const DRAW_ROWS: usize = 3;

/// Returns the words of a row of `seen`, which has a bit per token.
#[must_use]
pub fn seen_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(32)
}

/// Chooses a token for each of the first `count` rows of `logits [rows, 1, vocabulary]`, f32 or bf16, and
/// writes them to `chosen [count]` u32.
///
/// `draws [3, rows]` u32 are the draw numbers and keys of the rows ([`DRAW_ROWS`]). `seen`, if present, is a
/// pair: `tokens [rows, 1]` u32 are first added to the bit sets `seen [count, seen_words(vocabulary)]` u32,
/// to which the repetition penalty applies. On a GPU, rows without top-k or top-p are computed in slices,
/// whose results need a workspace.
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
