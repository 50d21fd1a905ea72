//! Token embedding, with learned, fixed or no position embedding.

mod operands;
mod rule;

use collective::Axis;
use device::{Category, Request};
use tensor::{Tensor, ops};

use super::{add, autocast, named};
use crate::error::{AutogradError, Result};
use crate::sharded::{BlockIndex, Dimension, Placement, Var};
use crate::tape::Tape;

pub use operands::{Positions, TokenTable};
pub use rule::EmbeddingRule;
use rule::{OPERATOR, TableShards};

/// Looks up token embeddings and adds position embeddings, if any. Positions restart with each token's
/// document. `tokens_bl` is `[batch, time]` u32 with at most as many times as there are positions; with
/// sequence pieces, it concatenates all local pieces. The result is `[batch, time, width]`. The row of the
/// token `padding` gets no gradient.
pub fn embedding(
    tape: &Tape,
    tokens_bl: &Tensor,
    table: TokenTable<'_>,
    positions: Option<Positions<'_>>,
    padding: Option<u32>,
) -> Result<Var> {
    let (Some(pieces), None) = (tape.pieces(), tape.block()) else {
        return one_piece(tape, tokens_bl, table, positions, padding);
    };
    let shape = tokens_bl.shape();
    let count = pieces.here.len();
    let [sequences, time] = [shape.rows() / count, shape.columns()];
    let piece = |index: usize| {
        let own = tokens_bl.view(index * sequences * time, [sequences, time])?;
        let block = BlockIndex { shard: 0, piece: Some(index) };
        tape.within_block(block, || one_piece(tape, &own, table, positions, padding))
    };
    let pieces = (0..count).map(piece).collect::<Result<Vec<_>>>()?;
    let placements = pieces.first().map(Var::placements).unwrap_or_default();
    let all = Var::from_blocks(pieces).ok_or(AutogradError::NotRecorded)?.with_placements(placements);
    Ok(all.with_placement(Axis::Context, Placement::Shard(Dimension::Time)))
}

/// [`embedding`] of one piece of sequences, or of whole sequences.
fn one_piece(
    tape: &Tape,
    tokens_bl: &Tensor,
    table: TokenTable<'_>,
    positions: Option<Positions<'_>>,
    padding: Option<u32>,
) -> Result<Var> {
    let (Some(positions), Some(documents), TokenTable::Whole(_)) = (positions, &tape.pass().documents, table)
    else {
        return lookup(tape, tokens_bl, table, positions, padding);
    };
    // Positions in documents are looked up like tokens. If the table is in shards, the call for the first
    // shard looks them up and adds them.
    let numbers = named(OPERATOR, ops::embedding::positions(documents))?;
    let rows = lookup(tape, tokens_bl, table, None, padding)?;
    let positions = match positions {
        Positions::Learned(weight) => lookup(tape, &numbers, TokenTable::Whole(weight), None, None)?,
        Positions::Fixed(table) => {
            tape.constant(named(OPERATOR, ops::embedding::forward(&numbers, table, None))?)
        }
    };
    add(tape, rows, positions)
}

/// Looks up `tokens_bl` in every local shard of the table, and sums the rows over all shards.
fn lookup(
    tape: &Tape,
    tokens_bl: &Tensor,
    table: TokenTable<'_>,
    positions: Option<Positions<'_>>,
    padding: Option<u32>,
) -> Result<Var> {
    tape.begin(OPERATOR)?;
    let documents = tape.pass().documents.as_ref().filter(|_| positions.is_some());
    let numbers = named(OPERATOR, documents.map(ops::embedding::positions).transpose())?;
    let shards = TableShards::new(tape, table, padding);
    let rows = |shard: usize| -> tensor::Result<Tensor> {
        let table = shards.weights[shard].stored()?;
        let local = shards.local_tokens(tokens_bl, shard)?;
        // The first of all shards adds the positions, in one addition, whichever shard has the token.
        let adds = shards.number(shard) == 0;
        match (&numbers, positions.filter(|_| shard == 0)) {
            (Some(numbers), Some(positions)) => {
                let rows = ops::embedding::forward(&local, &table, None)?;
                // Looked up on every rank, so that all allocate alike.
                let positions = ops::embedding::forward(numbers, &positions.tensor()?, None)?;
                if adds {
                    ops::add::into(&rows, &positions)?;
                }
                Ok(rows)
            }
            (_, positions) => {
                let positions = positions.filter(|_| adds).map(Positions::tensor).transpose()?;
                ops::embedding::forward(&local, &table, positions.as_ref())
            }
        }
    };
    let parts = (0..shards.weights.len()).map(rows).collect::<tensor::Result<Vec<_>>>();
    let request = Request::new(Category::Activation, OPERATOR);
    let output_bld = shards.ranks.sum_rows(named(OPERATOR, parts)?, request)?;
    let positions = positions.and_then(Positions::weight).cloned();
    let rule = || EmbeddingRule { tokens: tokens_bl.clone(), numbers, shards, positions, gradient: None };
    let [output_bld] = autocast(tape, OPERATOR, [tape.record_one(&[], output_bld, rule)?])?;
    Ok(match table {
        TokenTable::Shards { shards_rows: true, .. } => {
            let rows = Dimension::Rows { time: tokens_bl.shape().columns() };
            output_bld.with_placement(Axis::Tensor, Placement::Shard(rows))
        }
        _ => output_bld,
    })
}
