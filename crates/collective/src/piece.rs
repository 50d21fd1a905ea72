//! What one message carries: a bounded number of bytes, aligned so that it can be added without a copy.

/// The most bytes in one message. A multiple of every element's size.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// Idle pieces that a pool keeps.
const KEPT: usize = 16;

/// Some bytes on their way, aligned to 4.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    words: Vec<u32>,
    len: usize,
}

impl Piece {
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }

    fn resize(&mut self, len: usize) {
        self.words.resize(len.div_ceil(4), 0);
        self.len = len;
    }
}

/// Pieces to use again: as many come in as go out.
#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<Piece>);

impl Pool {
    /// A piece of `len` bytes with any contents.
    pub(crate) fn take(&mut self, len: usize) -> Piece {
        let mut piece = self.0.pop().unwrap_or_default();
        piece.resize(len);
        piece
    }

    pub(crate) fn put(&mut self, piece: Piece) {
        if self.0.len() < KEPT {
            self.0.push(piece);
        }
    }
}
