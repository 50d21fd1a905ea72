//! Iteration over the blocks of a value by piece or by shard.

use super::map::{FromBlocks, pieces_of};
use super::placement::{BlockIndex, Placement};
use super::var::Var;
use crate::error::{AutogradError, Result};
use crate::tape::Tape;

impl Var {
    /// Calls `f` for each sequence piece with the blocks of all local shards.
    pub(super) fn by_piece<T: FromBlocks>(
        self,
        tape: &Tape,
        mut f: impl FnMut(Vec<Var>) -> Result<T>,
    ) -> Result<T> {
        self.each_piece(tape, |_, piece| f(piece.into_blocks().collect()))
    }

    /// Calls `f` for each sequence piece, in the piece's pass, with its index and the blocks of all local
    /// shards. For whole sequences, and within such a call, calls `f` once. The result has the placements of
    /// the value.
    ///
    /// # Errors
    /// Errors of `f`.
    pub fn each_piece<T: FromBlocks, E: From<AutogradError>>(
        self,
        tape: &Tape,
        mut f: impl FnMut(usize, Var) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let placements = self.placements();
        let Some(pieces) = pieces_of(tape, placements) else {
            let piece = tape.block().and_then(|block| block.piece).unwrap_or(0);
            return Ok(f(piece, self)?.with_placements(placements));
        };
        let shard = tape.block().unwrap_or_default().shard;
        let mut of_pieces: Vec<Vec<Var>> = (0..pieces).map(|_| Vec::new()).collect();
        for (index, block) in self.into_blocks().enumerate() {
            of_pieces[index % pieces].push(block);
        }
        let mut results = Vec::with_capacity(pieces);
        for (index, parts) in of_pieces.into_iter().enumerate() {
            let block = BlockIndex { shard, piece: Some(index) };
            let parts = Var::from_blocks(parts).ok_or(AutogradError::NotRecorded)?;
            results.push(tape.within_block(block, || f(index, parts))?);
        }
        let all = T::from_blocks(results).ok_or(AutogradError::NotRecorded)?;
        Ok(all.with_placements(placements))
    }

    /// Calls `f` for each local shard of a layer, one after another, with all pieces of its block, so that
    /// one shard's temporary tensors are freed before the next begins. The result has the placements of the
    /// value.
    ///
    /// # Errors
    /// Errors of `f`.
    pub fn each_shard<E: From<AutogradError>>(
        self,
        tape: &Tape,
        mut f: impl FnMut(Var) -> std::result::Result<Var, E>,
    ) -> std::result::Result<Var, E> {
        each_shard(tape, [self], |_, [own]| f(own))
    }
}

/// [`Var::each_shard`] for several values with the same placements. `f` also takes the shard's index.
///
/// # Errors
/// Errors of `f`.
pub fn each_shard<const N: usize, E: From<AutogradError>>(
    tape: &Tape,
    operands: [Var; N],
    mut f: impl FnMut(usize, [Var; N]) -> std::result::Result<Var, E>,
) -> std::result::Result<Var, E> {
    let placements = operands.first().map(Var::placements).unwrap_or_default();
    let pieces = pieces_of(tape, placements).unwrap_or(1);
    if tape.block().is_some() || placements.tensor == Placement::Replicate {
        let shard = tape.block().unwrap_or_default().shard;
        return Ok(f(shard, operands)?.with_placements(placements));
    }
    let shards = operands.first().map_or(0, Var::blocks) / pieces;
    let mut blocks = operands.map(Var::into_blocks);
    let mut results = Vec::with_capacity(shards * pieces);
    for shard in 0..shards {
        let own = blocks.iter_mut().filter_map(|blocks| Var::from_blocks(blocks.by_ref().take(pieces)));
        let expected = N;
        let own =
            <[Var; N]>::try_from(own.collect::<Vec<_>>()).map_err(|_| AutogradError::Blocks { expected })?;
        let block = BlockIndex { shard, piece: None };
        results.extend(tape.within_block(block, || f(shard, own))?.into_blocks());
    }
    let all = Var::from_blocks(results).ok_or(AutogradError::NotRecorded)?;
    Ok(all.with_placements(placements))
}
