//! Applies operators block by block; the operators themselves know nothing of ranks.

use super::placement::{BlockIndex, Placement, Placements};
use super::var::Var;
use crate::error::AutogradError;
use crate::tape::Tape;

/// An operator's result for one block; the results of all blocks can be joined.
pub trait FromBlocks: Sized {
    /// Joins the results of all blocks; `None` if there are none.
    fn from_blocks(blocks: Vec<Self>) -> Option<Self>;

    /// Sets the placements of the result.
    #[must_use]
    fn with_placements(self, placements: Placements) -> Self;
}

impl FromBlocks for Var {
    /// Joins the blocks of pieces. Each piece may have one block per shard.
    fn from_blocks(blocks: Vec<Self>) -> Option<Self> {
        let shards = blocks.first()?.blocks();
        let mut pieces: Vec<_> = blocks.into_iter().map(Var::into_blocks).collect();
        let mut in_order = Vec::with_capacity(shards * pieces.len());
        (0..shards).for_each(|_| in_order.extend(pieces.iter_mut().filter_map(Iterator::next)));
        Var::from_blocks(in_order)
    }

    fn with_placements(self, placements: Placements) -> Self {
        Var::with_placements(self, placements)
    }
}

impl<A: FromBlocks, B: FromBlocks> FromBlocks for (A, B) {
    fn from_blocks(blocks: Vec<Self>) -> Option<Self> {
        let (first, second) = blocks.into_iter().unzip();
        Some((A::from_blocks(first)?, B::from_blocks(second)?))
    }

    fn with_placements(self, placements: Placements) -> Self {
        (self.0.with_placements(placements), self.1.with_placements(placements))
    }
}

impl<T: FromBlocks> FromBlocks for Vec<T> {
    fn from_blocks(blocks: Vec<Self>) -> Option<Self> {
        let mut blocks: Vec<_> = blocks.into_iter().map(Vec::into_iter).collect();
        let length = blocks.first()?.len();
        let mut next = || T::from_blocks(blocks.iter_mut().filter_map(Iterator::next).collect());
        (0..length).map(|_| next()).collect()
    }

    fn with_placements(self, placements: Placements) -> Self {
        self.into_iter().map(|value| value.with_placements(placements)).collect()
    }
}

/// Calls `operator` for each block of `operands`, with the block's index and values of one block, in the pass
/// of the block's sequence piece. Along each axis, the result has the placement of the first operand that is
/// not replicated. If no operand is divided, this is a plain call.
///
/// # Errors
/// `operator` failed, or an operand has fewer blocks than another and needs a gradient.
pub fn map<const N: usize, T: FromBlocks, E: From<AutogradError>>(
    tape: &Tape,
    operands: [Var; N],
    mut operator: impl FnMut(BlockIndex, [Var; N]) -> Result<T, E>,
) -> Result<T, E> {
    if let Some(block) = one_block(tape, &operands) {
        let placements = placements_of(&operands);
        return Ok(operator(block, operands)?.with_placements(placements));
    }
    map_all(tape, operands.into(), |block, operands| {
        let expected = N;
        let operands = operands.try_into().map_err(|_| AutogradError::Blocks { expected })?;
        operator(block, operands)
    })
}

/// [`map`] for any number of operands.
pub(crate) fn map_all<T: FromBlocks, E: From<AutogradError>>(
    tape: &Tape,
    operands: Vec<Var>,
    mut operator: impl FnMut(BlockIndex, Vec<Var>) -> Result<T, E>,
) -> Result<T, E> {
    let placements = placements_of(&operands);
    if let Some(block) = one_block(tape, &operands) {
        return Ok(operator(block, operands)?.with_placements(placements));
    }
    let count = operands.iter().map(Var::blocks).max().unwrap_or(1);
    if operands.iter().any(|operand| operand.blocks() != count && operand.wants_gradient()) {
        return Err(AutogradError::Blocks { expected: count }.into());
    }
    let outer = tape.block();
    let pieces = pieces_of(tape, placements);
    let block = |index: usize| BlockIndex {
        shard: outer
            .filter(|_| count == pieces.unwrap_or(1))
            .map_or(index / pieces.unwrap_or(1), |outer| outer.shard),
        piece: pieces.map_or(outer.and_then(|outer| outer.piece), |pieces| Some(index % pieces)),
    };
    let mut operands: Vec<_> = operands.into_iter().map(|operand| blocks_of(operand, count)).collect();
    let mut results = Vec::with_capacity(count);
    for index in 0..count {
        let blocks = operands.iter_mut().filter_map(Iterator::next).collect();
        results.push(tape.within_block(block(index), || operator(block(index), blocks))?);
    }
    let all = T::from_blocks(results).ok_or(AutogradError::NotRecorded)?;
    Ok(all.with_placements(placements))
}

/// Returns the block computed by a plain call: no operand is divided, or the call is already within a block.
fn one_block(tape: &Tape, operands: &[Var]) -> Option<BlockIndex> {
    let has_several = operands.iter().any(|operand| operand.blocks() > 1);
    if has_several || pieces_of(tape, placements_of(operands)).is_some() {
        return None;
    }
    let is_whole = |operand: &Var| operand.placements().is_of_one_block();
    tape.block().or_else(|| operands.iter().all(is_whole).then(BlockIndex::default))
}

/// Returns the number of local pieces of a value with these placements; `None` for whole sequences, and
/// within a call for one piece.
pub(super) fn pieces_of(tape: &Tape, placements: Placements) -> Option<usize> {
    let is_pieced = placements.context != Placement::Replicate;
    let is_within = tape.block().is_some_and(|block| block.piece.is_some());
    tape.pieces().filter(|_| is_pieced && !is_within).map(|pieces| pieces.here.len())
}

/// Returns the blocks of an operand; the single block of a constant is repeated `count` times.
fn blocks_of(operand: Var, count: usize) -> impl Iterator<Item = Var> {
    let again = (operand.blocks() < count).then(|| operand.clone());
    operand.into_blocks().chain(again.into_iter().cycle())
}

fn placements_of(operands: &[Var]) -> Placements {
    operands.iter().fold(Placements::default(), |all, operand| all.of_result(operand.placements()))
}
