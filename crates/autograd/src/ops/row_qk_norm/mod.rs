//! Normalisation of all query heads together, and of all key heads together.

mod columns;
mod sharded;
mod whole;

use collective::Axis;
use tensor::ops::attention::Heads;

use super::QkNormWeights;
use crate::error::{AutogradError, Result};
use crate::sharded::{Placement, Var, map};
use crate::tape::Tape;

pub use sharded::ShardedNormRule;
pub use whole::RowQkNormRule;

/// RMS norm of the queries of all heads of a row of packed `qkv [batch, time, heads.packed_columns()]`, and
/// of its keys. The weights are `[columns]` of each; values are unchanged. If heads are in shards, blocks
/// have the heads of one, `weights` are those of the shards that are here, and rows have `columns` columns of
/// queries and of keys in all.
///
/// # Errors
/// Shapes or types that do not agree, out of memory, a failed collective.
pub fn row_qk_norm(
    tape: &Tape,
    qkv: Var,
    heads: Heads,
    weights: &[QkNormWeights],
    columns: [usize; 2],
    epsilon: f32,
) -> Result<Var> {
    if matches!(qkv.placement(Axis::Tensor), Placement::Shard(_)) {
        return qkv.each_piece(tape, |_, shards| {
            let shards = shards.into_blocks().collect();
            let normalised = sharded::row_qk_norm(tape, shards, heads, weights, columns, epsilon)?;
            Var::from_blocks(normalised).ok_or(AutogradError::NotRecorded)
        });
    }
    let weights = weights.first().ok_or(AutogradError::NotRecorded)?;
    map(tape, [qkv], |_, [qkv]| whole::row_qk_norm(tape, qkv, heads, weights, epsilon))
}
