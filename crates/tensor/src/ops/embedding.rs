//! Token and position embedding: row `table[token]` plus row `positions[time]`.

use device::parallel::{for_pieces, simd};
use device::{Category, DType, Request};

use super::{GradientTarget, check, rows};
use crate::{Result, Tensor};

/// A table's gradient is cut into about so many tasks, each of which reads all tokens.
const TABLE_TASKS: usize = 64;

/// `tokens [batch, time]` u32, `table [vocab, width]` and `positions [context, width]` f32, with
/// time ≤ context, to `[batch, time, width]`.
/// Errors: shapes or types that do not agree, a token outside the table, out of memory.
pub fn forward(tokens: &Tensor, table: &Tensor, positions: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "embedding.forward";
    let sizes = Sizes::of(OPERATOR, tokens, table, positions)?;
    let shape = [sizes.batch, sizes.time, sizes.width];
    let request = Request::new(Category::Activation, OPERATOR);
    let output = Tensor::empty(tokens.device(), shape, DType::F32, request)?;
    if tokens.device().is_meta() {
        return Ok(output);
    }
    let (tokens, table, positions) = (tokens.read()?, table.read()?, positions.read()?);
    let (tokens, table, positions): (&[u32], &[f32], &[f32]) = (&tokens, &table, &positions);
    check::indices(OPERATOR, tokens, sizes.vocab)?;
    let (width, per_task) = (sizes.width, rows::per_task(sizes.width));
    for_pieces(&mut output.write::<f32>()?, per_task * width, |index, out| {
        simd(|| {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let row = index * per_task + row;
                let token = &table[tokens[row] as usize * width..][..width];
                let position = &positions[row % sizes.time * width..][..width];
                for ((out, token), position) in out.iter_mut().zip(token).zip(position) {
                    *out = token + position;
                }
            }
        });
    });
    Ok(output)
}

/// The gradients of both tables from `dy [batch, time, width]`: every row adds what reaches it in the order
/// of (batch, time). Without `accumulate` a whole table is overwritten, rows that were not used with zeros.
/// Errors: shapes or types that do not agree, a token outside the table.
pub fn backward_weight(
    dy: &Tensor,
    tokens: &Tensor,
    table: &GradientTarget,
    positions: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "embedding.backward_weight";
    let sizes = Sizes::of(OPERATOR, tokens, &table.tensor, &positions.tensor)?;
    check::f32s(OPERATOR, &[("dy", dy)])?;
    check::shape(OPERATOR, "dy", dy, [sizes.batch, sizes.time, sizes.width])?;
    if dy.device().is_meta() {
        return Ok(());
    }
    let (dy, tokens) = (dy.read::<f32>()?, tokens.read::<u32>()?);
    check::indices(OPERATOR, &tokens, sizes.vocab)?;
    table_gradient(&dy, &tokens, &mut table.tensor.write::<f32>()?, table.accumulate, sizes);
    position_gradient(&dy, &mut positions.tensor.write::<f32>()?, positions.accumulate, sizes);
    Ok(())
}

#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    time: usize,
    vocab: usize,
    width: usize,
}

impl Sizes {
    fn of(operator: &'static str, tokens: &Tensor, table: &Tensor, positions: &Tensor) -> Result<Self> {
        check::dtype(operator, "tokens", tokens, DType::U32)?;
        check::f32s(operator, &[("table", table), ("positions", positions)])?;
        check::rank(operator, "tokens", tokens, 2)?;
        check::rank(operator, "table", table, 2)?;
        check::rank(operator, "positions", positions, 2)?;
        let (tokens, width) = (tokens.shape(), table.shape().columns());
        let (batch, time) = (tokens.rows(), tokens.columns());
        if positions.shape().columns() != width || positions.shape().rows() < time {
            let expected = format!("[at least {time}, {width}]");
            return Err(check::wrong(operator, "positions", positions, expected));
        }
        Ok(Sizes { batch, time, vocab: table.shape().rows(), width })
    }
}

fn table_gradient(dy: &[f32], tokens: &[u32], table: &mut [f32], accumulate: bool, sizes: Sizes) {
    let width = sizes.width;
    let rows = sizes.vocab.div_ceil(TABLE_TASKS);
    for_pieces(table, rows * width, |index, table| {
        simd(|| {
            if !accumulate {
                table.fill(0.0);
            }
            let first = index * rows;
            let own = first..first + table.len() / width;
            for (row, token) in tokens.iter().enumerate() {
                let token = *token as usize;
                if own.contains(&token) {
                    let target = &mut table[(token - first) * width..][..width];
                    add(target, &dy[row * width..][..width]);
                }
            }
        });
    });
}

fn position_gradient(dy: &[f32], positions: &mut [f32], accumulate: bool, sizes: Sizes) {
    let width = sizes.width;
    let rows = rows::per_task(width * sizes.batch);
    for_pieces(positions, rows * width, |index, positions| {
        simd(|| {
            for (row, target) in positions.chunks_exact_mut(width).enumerate() {
                let time = index * rows + row;
                if !accumulate {
                    target.fill(0.0);
                }
                let batches = if time < sizes.time { sizes.batch } else { 0 };
                for batch in 0..batches {
                    add(target, &dy[(batch * sizes.time + time) * width..][..width]);
                }
            }
        });
    });
}

#[inline(always)]
fn add(target: &mut [f32], source: &[f32]) {
    target.iter_mut().zip(source).for_each(|(target, source)| *target += source);
}
