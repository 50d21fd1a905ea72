//! Token embedding: row `table[token]`, plus row `positions[time]` if positions are learned.

mod cpu;
pub(crate) mod cuda;
mod sizes;
mod workspace;

use device::{Backend, Category, DType, Request};

use super::rotary::check_documents;
use super::{GradientTarget, check};
use crate::{Result, Tensor};
pub use sizes::ABSENT;
use sizes::Sizes;

/// Converts `tokens`, u32, to row indices in a shard of a table: `rows` rows, the first of which belongs to
/// token `first`. Tokens of other shards become [`ABSENT`].
pub fn local_tokens(tokens: &Tensor, first: usize, rows: usize) -> Result<Tensor> {
    const OPERATOR: &str = "embedding.local_tokens";
    check::dtype(OPERATOR, "tokens", tokens, DType::U32)?;
    let output = tokens.like(DType::U32, Request::new(Category::Activation, OPERATOR))?;
    match tokens.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let tokens = tokens.read::<u32>()?;
            for (local, token) in output.write::<u32>()?.iter_mut().zip(&*tokens) {
                let number = (*token as usize).checked_sub(first).filter(|number| *number < rows);
                *local = number.map_or(ABSENT, |number| number as u32);
            }
        }
        Backend::Cuda => cuda::local_tokens(OPERATOR, tokens, &output, first, rows)?,
    }
    Ok(output)
}

/// Returns an error for a token outside a table of `vocab` rows that is not [`ABSENT`].
fn check_tokens(operator: &'static str, tokens: &[u32], vocab: usize) -> Result<()> {
    let present: Vec<u32> = tokens.iter().copied().filter(|token| *token != ABSENT).collect();
    check::indices(operator, &present, vocab)
}

/// Looks up `tokens [batch, time]` u32 in `table [vocab, width]` and adds `positions [context, width]`,
/// giving `[batch, time, width]`. Tables are both f32 or both bf16; time ≤ context. The row of an [`ABSENT`]
/// token is −0, or its position's row.
///
/// # Errors
/// Shapes or types that do not agree, a token outside the table (on a GPU it ends the process's use of the
/// device), out of memory.
pub fn forward(tokens: &Tensor, table: &Tensor, positions: Option<&Tensor>) -> Result<Tensor> {
    const OPERATOR: &str = "embedding.forward";
    let sizes = Sizes::check(OPERATOR, tokens, table, positions)?;
    let shape = [sizes.batch, sizes.time, sizes.width];
    let request = Request::new(Category::Activation, OPERATOR);
    let output = Tensor::empty(tokens.device(), shape, table.dtype(), request)?;
    match tokens.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let tokens = tokens.read::<u32>()?;
            check_tokens(OPERATOR, &tokens, sizes.vocab)?;
            let positions = positions.map(Tensor::values).transpose()?;
            cpu::forward(&tokens, &table.values()?, positions.as_deref(), &mut output.values_mut()?, sizes);
        }
        Backend::Cuda => cuda::forward(OPERATOR, tokens, table, positions, &output, sizes)?,
    }
    Ok(output)
}

/// Returns the position of each token in its document, `[batch, time]` u32. `documents`, of the same shape,
/// has the position in the sequence where the token's document starts; negative (modulo 2³²) if it starts
/// before the sequence.
///
/// # Errors
/// Another type or shape, a document that begins after its token, out of memory.
pub fn positions(documents: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "embedding.positions";
    check::dtype(OPERATOR, "documents", documents, DType::U32)?;
    check::rank(OPERATOR, "documents", documents, 2)?;
    let output = documents.like(DType::U32, Request::new(Category::Activation, OPERATOR))?;
    let time = documents.shape().columns();
    match documents.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let documents = documents.read::<u32>()?;
            check_documents(OPERATOR, Some(&documents), time)?;
            for (row, (position, first)) in output.write::<u32>()?.iter_mut().zip(&*documents).enumerate() {
                *position = ((row % time) as u32).wrapping_sub(*first);
            }
        }
        Backend::Cuda => cuda::positions(OPERATOR, documents, &output)?,
    }
    Ok(output)
}

/// Computes the gradients of the tables from `dy [batch, time, width]`. Every row adds its gradients in f32
/// in the order of (batch, time) and is rounded once. The targets are both f32 or both of the type of `dy`.
/// Without `accumulate` a whole table is overwritten, rows of unused tokens with zeros.
pub fn backward_weight(
    dy: &Tensor,
    tokens: &Tensor,
    table: &GradientTarget,
    positions: Option<&GradientTarget>,
) -> Result<()> {
    backward_padded(dy, tokens, None, table, positions)
}

/// Computes [`backward_weight`], ignoring the gradients of the token `padding`.
pub fn backward_padded(
    dy: &Tensor,
    tokens: &Tensor,
    padding: Option<u32>,
    table: &GradientTarget,
    positions: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "embedding.backward_weight";
    let dtype = check::computed(OPERATOR, &[("dy", dy)])?;
    let targets = [Some(("table", table)), positions.map(|positions| ("positions", positions))];
    check::targets(OPERATOR, dtype, &targets.into_iter().flatten().collect::<Vec<_>>())?;
    let position_table = positions.map(|positions| &positions.tensor);
    let sizes = Sizes::check(OPERATOR, tokens, &table.tensor, position_table)?;
    check::shape(OPERATOR, "dy", dy, [sizes.batch, sizes.time, sizes.width])?;
    let bytes = workspace::backward_weight(tokens.elements(), sizes.vocab);
    let workspace = Tensor::workspace(dy.device(), OPERATOR, bytes)?;
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy = dy.values()?;
            let tokens = tokens.read::<u32>()?;
            check_tokens(OPERATOR, &tokens, sizes.vocab)?;
            cpu::table_gradient(
                &dy,
                (&tokens, padding),
                &mut table.tensor.values_mut()?,
                table.accumulate,
                sizes,
            );
            if let Some(GradientTarget { tensor, accumulate }) = positions {
                cpu::position_gradient(&dy, &mut tensor.values_mut()?, *accumulate, sizes);
            }
        }
        Backend::Cuda => {
            cuda::table_gradient(OPERATOR, dy, (tokens, padding), &workspace, table, sizes)?;
            if let Some(positions) = positions {
                cuda::position_gradient(OPERATOR, dy, positions, sizes)?;
            }
        }
    }
    Ok(())
}

/// Computes the gradient of the position table alone, as [`backward_weight`] does, from `dy [batch, time,
/// width]`.
pub fn backward_positions(dy: &Tensor, positions: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "embedding.backward_positions";
    let dtype = check::computed(OPERATOR, &[("dy", dy)])?;
    check::targets(OPERATOR, dtype, &[("positions", positions)])?;
    let sizes = Sizes::check_positions(OPERATOR, dy, &positions.tensor)?;
    match dy.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let GradientTarget { tensor, accumulate } = positions;
            cpu::position_gradient(&dy.values()?, &mut tensor.values_mut()?, *accumulate, sizes);
            Ok(())
        }
        Backend::Cuda => cuda::position_gradient(OPERATOR, dy, positions, sizes),
    }
}
