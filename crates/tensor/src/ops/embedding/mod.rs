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

/// Converts `tokens_bl`, u32, to row indices in a shard of a table: `rows` rows, the first of which belongs
/// to token `first`. Tokens of other shards become [`ABSENT`].
pub fn local_tokens(tokens_bl: &Tensor, first: usize, rows: usize) -> Result<Tensor> {
    const OPERATOR: &str = "embedding.local_tokens";
    check::dtype(OPERATOR, "tokens", tokens_bl, DType::U32)?;
    let output_bl = tokens_bl.like(DType::U32, Request::new(Category::Activation, OPERATOR))?;
    match tokens_bl.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let tokens_bl = tokens_bl.read::<u32>()?;
            for (local, token) in output_bl.write::<u32>()?.iter_mut().zip(&*tokens_bl) {
                let number = (*token as usize).checked_sub(first).filter(|number| *number < rows);
                *local = number.map_or(ABSENT, |number| number as u32);
            }
        }
        Backend::Cuda => cuda::local_tokens(OPERATOR, tokens_bl, &output_bl, first, rows)?,
    }
    Ok(output_bl)
}

/// Returns an error for a token outside a table of `vocab` rows that is not [`ABSENT`].
fn check_tokens(operator: &'static str, tokens: &[u32], vocab: usize) -> Result<()> {
    let present: Vec<u32> = tokens.iter().copied().filter(|token| *token != ABSENT).collect();
    check::indices(operator, &present, vocab)
}

/// Looks up `tokens_bl [batch, time]` u32 in `table_vd [vocab, width]` and adds `positions_ld [context,
/// width]`, giving `[batch, time, width]`. Tables are both f32 or both bf16; time ≤ context. The row of an
/// [`ABSENT`] token is −0, or its position's row.
///
/// # Errors
/// Shapes or types that do not agree, a token outside the table (on a GPU it ends the process's use of the
/// device), out of memory.
pub fn forward(tokens_bl: &Tensor, table_vd: &Tensor, positions_ld: Option<&Tensor>) -> Result<Tensor> {
    const OPERATOR: &str = "embedding.forward";
    let sizes = Sizes::check(OPERATOR, tokens_bl, table_vd, positions_ld)?;
    let shape = [sizes.batch, sizes.time, sizes.width];
    let request = Request::new(Category::Activation, OPERATOR);
    let output_bld = Tensor::empty(tokens_bl.device(), shape, table_vd.dtype(), request)?;
    match tokens_bl.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let tokens_bl = tokens_bl.read::<u32>()?;
            check_tokens(OPERATOR, &tokens_bl, sizes.vocab)?;
            let positions_ld = positions_ld.map(Tensor::values).transpose()?;
            cpu::forward(
                &tokens_bl,
                &table_vd.values()?,
                positions_ld.as_deref(),
                &mut output_bld.values_mut()?,
                sizes,
            );
        }
        Backend::Cuda => cuda::forward(OPERATOR, tokens_bl, table_vd, positions_ld, &output_bld, sizes)?,
    }
    Ok(output_bld)
}

/// Returns the position of each token in its document, `[batch, time]` u32. `documents_bl`, of the same
/// shape, has the position in the sequence where the token's document starts; negative (modulo 2³²) if it
/// starts before the sequence.
///
/// # Errors
/// Another type or shape, a document that begins after its token, out of memory.
pub fn positions(documents_bl: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "embedding.positions";
    check::dtype(OPERATOR, "documents", documents_bl, DType::U32)?;
    check::rank(OPERATOR, "documents", documents_bl, 2)?;
    let output_bl = documents_bl.like(DType::U32, Request::new(Category::Activation, OPERATOR))?;
    let time = documents_bl.shape().columns();
    match documents_bl.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let documents_bl = documents_bl.read::<u32>()?;
            check_documents(OPERATOR, Some(&documents_bl), time)?;
            for (row, (position, first)) in
                output_bl.write::<u32>()?.iter_mut().zip(&*documents_bl).enumerate()
            {
                *position = ((row % time) as u32).wrapping_sub(*first);
            }
        }
        Backend::Cuda => cuda::positions(OPERATOR, documents_bl, &output_bl)?,
    }
    Ok(output_bl)
}

/// Computes the gradients of the tables from `dy_bld [batch, time, width]`. Every row adds its gradients in
/// f32 in the order of (batch, time) and is rounded once. The targets are both f32 or both of the type of
/// `dy_bld`. Without `accumulate` a whole table is overwritten, rows of unused tokens with zeros.
pub fn backward_weight(
    dy_bld: &Tensor,
    tokens_bl: &Tensor,
    table: &GradientTarget,
    positions: Option<&GradientTarget>,
) -> Result<()> {
    backward_padded(dy_bld, tokens_bl, None, table, positions)
}

/// Computes [`backward_weight`], ignoring the gradients of the token `padding`.
pub fn backward_padded(
    dy_bld: &Tensor,
    tokens_bl: &Tensor,
    padding: Option<u32>,
    table: &GradientTarget,
    positions: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "embedding.backward_weight";
    let dtype = check::computed(OPERATOR, &[("dy", dy_bld)])?;
    let targets = [Some(("table", table)), positions.map(|positions| ("positions", positions))];
    check::targets(OPERATOR, dtype, &targets.into_iter().flatten().collect::<Vec<_>>())?;
    let position_table = positions.map(|positions| &positions.tensor);
    let sizes = Sizes::check(OPERATOR, tokens_bl, &table.tensor, position_table)?;
    check::shape(OPERATOR, "dy", dy_bld, [sizes.batch, sizes.time, sizes.width])?;
    let bytes = workspace::backward_weight(tokens_bl.elements(), sizes.vocab);
    let workspace = Tensor::workspace(dy_bld.device(), OPERATOR, bytes)?;
    match dy_bld.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy_bld = dy_bld.values()?;
            let tokens_bl = tokens_bl.read::<u32>()?;
            check_tokens(OPERATOR, &tokens_bl, sizes.vocab)?;
            cpu::table_gradient(
                &dy_bld,
                (&tokens_bl, padding),
                &mut table.tensor.values_mut()?,
                table.accumulate,
                sizes,
            );
            if let Some(GradientTarget { tensor, accumulate }) = positions {
                cpu::position_gradient(&dy_bld, &mut tensor.values_mut()?, *accumulate, sizes);
            }
        }
        Backend::Cuda => {
            cuda::table_gradient(OPERATOR, dy_bld, (tokens_bl, padding), &workspace, table, sizes)?;
            if let Some(positions) = positions {
                cuda::position_gradient(OPERATOR, dy_bld, positions, sizes)?;
            }
        }
    }
    Ok(())
}

/// Computes the gradient of the position table alone, as [`backward_weight`] does, from `dy_bld
/// [batch, time, width]`.
pub fn backward_positions(dy_bld: &Tensor, positions: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "embedding.backward_positions";
    let dtype = check::computed(OPERATOR, &[("dy", dy_bld)])?;
    check::targets(OPERATOR, dtype, &[("positions", positions)])?;
    let sizes = Sizes::check_positions(OPERATOR, dy_bld, &positions.tensor)?;
    match dy_bld.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let GradientTarget { tensor, accumulate } = positions;
            cpu::position_gradient(&dy_bld.values()?, &mut tensor.values_mut()?, *accumulate, sizes);
            Ok(())
        }
        Backend::Cuda => cuda::position_gradient(OPERATOR, dy_bld, positions, sizes),
    }
}
