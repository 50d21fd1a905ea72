//! Settings of the loss, and the pieces of the vocabulary that follow from them.

/// Pieces begin at multiples of so many classes, so that rows of scores are aligned.
const PIECE_STEP: usize = 64;

/// Settings of the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The loss is so many times the mean over rows.
    pub scale: f32,
    /// c, where a score is c·tanh(x/c) instead of x.
    pub soft_cap: Option<f32>,
    /// Pieces that the vocabulary is cut into, at least 1; fewer where they would be less than 64 classes.
    pub pieces: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) first: usize,
    pub(super) classes: usize,
    pub(super) vocabulary: usize,
    /// Whether the piece begins the rows' statistics.
    pub(super) is_fresh: bool,
    pub(super) is_last: bool,
    /// 0 for none.
    pub(super) soft_cap: f32,
}

/// The pieces in the order of their classes.
pub(super) fn pieces(vocabulary: usize, settings: &Settings) -> impl Iterator<Item = Piece> {
    let most = vocabulary.div_ceil(settings.pieces.max(1)).next_multiple_of(PIECE_STEP);
    let soft_cap = settings.soft_cap.unwrap_or(0.0);
    let piece = move |first| {
        let classes = most.min(vocabulary - first);
        let is_fresh = first == 0;
        let is_last = first + classes == vocabulary;
        Piece { first, classes, vocabulary, is_fresh, is_last, soft_cap }
    };
    (0..vocabulary).step_by(most).map(piece)
}
