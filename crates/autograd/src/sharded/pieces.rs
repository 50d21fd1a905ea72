//! Pieces of sequences: equal parts, distributed over the ranks along [`collective::Axis::Context`].
//!
//! Every operator except attention computes each piece separately, with the same shapes on any number of
//! ranks.

use tensor::Tensor;

use crate::error::Result;

/// The pieces of a micro-batch's sequences.
///
/// Pieces are dealt to ranks from both ends of the sequences, which balances attention. Sums over pieces are
/// added in a fixed tree in the dealt order, so each rank has consecutive leaves.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// Number of pieces per sequence: a power of two.
    pub all: usize,
    /// The local pieces.
    pub here: Vec<SequencePiece>,
    /// Whether weight gradients and the loss are summed over the ranks with the other pieces; if false, only
    /// over the local pieces.
    pub sums_over_ranks: bool,
    /// Whether tokens attend only within their document.
    pub masks_documents: bool,
}

/// One piece of the sequences of a micro-batch.
#[derive(Clone, Debug)]
pub struct SequencePiece {
    /// Index of the piece within a sequence.
    pub number: usize,
    /// The piece's weight in the micro-batch's loss: its fraction of the tokens that the loss covers.
    pub share: f32,
    /// Position at which each token's document begins, relative to the piece's first position, modulo 2³².
    /// Token positions are counted from it, also if every sequence is one document.
    pub documents: Option<Tensor>,
}

impl Pieces {
    /// Returns piece indices in the order in which pieces are dealt to ranks: first, last, second, last but
    /// one, ….
    #[must_use]
    pub fn dealt(all: usize) -> Vec<usize> {
        (0..all).map(|index| if index % 2 == 0 { index / 2 } else { all - 1 - index / 2 }).collect()
    }
}

/// Returns part `index` of `parts` equal parts of the rows of `x [rows, ..]`.
pub(crate) fn part(x: &Tensor, index: usize, parts: usize) -> Result<Tensor> {
    let rows = x.shape().dims().first().copied().unwrap_or(0) / parts;
    let shape = x.shape().with(0, rows).unwrap_or(x.shape());
    Ok(x.view(index * shape.elements(), shape)?)
}

#[cfg(test)]
mod tests {
    use super::Pieces;

    #[test]
    fn pieces_are_dealt_from_both_ends() {
        assert_eq!(Pieces::dealt(1), [0]);
        assert_eq!(Pieces::dealt(2), [0, 1]);
        assert_eq!(Pieces::dealt(8), [0, 7, 1, 6, 2, 5, 3, 4]);
    }
}
