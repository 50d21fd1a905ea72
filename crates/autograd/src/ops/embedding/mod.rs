//! Token embedding, without positions or with learned or fixed ones.

mod positions;
mod sharded;
mod whole;

use collective::Axis;
use tensor::Tensor;

use crate::error::{AutogradError, Result};
use crate::sharded::{BlockIndex, Dimension, Placement, Var};
use crate::tape::Tape;
use crate::weight::Weight;

pub use positions::Positions;
pub use sharded::ShardedEmbeddingRule;
pub use whole::EmbeddingRule;

/// A table of tokens, `[vocabulary, width]`.
#[derive(Clone, Copy, Debug)]
pub enum TokenTable<'a> {
    /// The whole table.
    Whole(&'a Weight),
    /// The shards of its rows that are here.
    Shards {
        /// Equal runs of rows.
        tables: &'a [Weight],
        /// Whether the result is the rows that are here, of those that are sharded between layers.
        shards_rows: bool,
    },
}

/// Rows of `table` by token, plus rows of `positions` by time if present, counted from the start of the
/// token's document. `tokens` is `[batch, time]` of u32, with time at most the rows of the positions, or
/// those of all pieces of sequences that are here, one after the other; the result is `[batch, time, width]`.
/// The row of the token `padding` gets no gradient.
///
/// # Errors
/// As [`forward`](tensor::ops::embedding::forward); a failed collective.
pub fn embedding(
    tape: &Tape,
    tokens: &Tensor,
    table: TokenTable<'_>,
    positions: Option<Positions<'_>>,
    padding: Option<u32>,
) -> Result<Var> {
    let one = |tokens: &Tensor| match table {
        TokenTable::Whole(table) => whole::embedding(tape, tokens, table, positions, padding),
        TokenTable::Shards { tables, shards_rows } => {
            let rows = sharded::embedding(tape, tokens, (tables, shards_rows), positions, padding)?;
            let time = tokens.shape().columns();
            Ok(if shards_rows { rows.with_placement(Axis::Tensor, rows_of(time)) } else { rows })
        }
    };
    let (Some(pieces), None) = (tape.pieces(), tape.block()) else { return one(tokens) };
    let (shape, count) = (tokens.shape(), pieces.here.len());
    let [sequences, time] = [shape.rows() / count, shape.columns()];
    let piece = |index: usize| {
        let own = tokens.view(index * sequences * time, [sequences, time])?;
        tape.within_block(BlockIndex { shard: 0, piece: Some(index) }, || one(&own))
    };
    let pieces = (0..count).map(piece).collect::<Result<Vec<_>>>()?;
    let placements = pieces.first().map(Var::placements).unwrap_or_default();
    let all = Var::from_blocks(pieces).ok_or(AutogradError::NotRecorded)?.with_placements(placements);
    Ok(all.with_placement(Axis::Context, Placement::Shard(Dimension::Time)))
}

fn rows_of(time: usize) -> Placement {
    Placement::Shard(Dimension::Rows { time })
}
