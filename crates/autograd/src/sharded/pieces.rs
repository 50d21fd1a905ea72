//! Pieces of sequences: equal parts, of which ranks along [`collective::Axis::Context`] hold some each.
//!
//! Every operator but attention computes each piece by itself, with the same shapes on any number of ranks.

use tensor::Tensor;

use crate::error::Result;

/// The pieces of the sequences of a micro-batch.
///
/// They are dealt from both ends of the sequences, so that attention is even among ranks. Sums over pieces
/// are added in a fixed tree in that order, of which each rank has a run.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// Number of pieces of a sequence: a power of two.
    pub all: usize,
    /// The pieces that are here.
    pub here: Vec<Piece>,
    /// Whether the gradients of weights and the loss are summed over the ranks with the other pieces;
    /// otherwise they are those of the pieces that are here.
    pub sums_over_ranks: bool,
    /// Whether documents hide each other.
    pub masks_documents: bool,
}

/// A piece of the sequences of a micro-batch.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Number of the piece in a sequence, from its beginning.
    pub number: usize,
    /// The piece's part of the micro-batch's loss: that of the tokens that count.
    pub share: f32,
    /// The position in its sequence at which the document of each token begins, less the piece's first
    /// position, modulo 2³². Positions are counted from there, also where every sequence is one document.
    pub documents: Option<Tensor>,
}

impl Pieces {
    /// Returns the numbers of `all` pieces in the order in which they are dealt: the first, the last, the
    /// second, the last but one.
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
