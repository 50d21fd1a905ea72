//! Settings of the loss, and the vocabulary slices that follow from them.

/// Slices begin at multiples of this many classes, so that rows of scores are aligned.
const PIECE_STEP: usize = 64;

/// Settings of the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Factor of the mean loss.
    pub scale: f32,
    /// Cap c of the scores: x becomes c·tanh(x/c). `None`: no cap.
    pub soft_cap: Option<f32>,
    /// Number of slices of the vocabulary, at least 1; fewer if a slice would have less than 64 classes.
    pub pieces: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct VocabularySlice {
    pub(super) first: usize,
    pub(super) classes: usize,
    pub(super) vocabulary: usize,
    /// Whether this is the first slice, which initialises the rows' statistics.
    pub(super) is_fresh: bool,
    pub(super) is_last: bool,
    /// Cap of the scores; 0: no cap.
    pub(super) soft_cap: f32,
}

/// Returns the slices of the vocabulary, in the order of their classes.
pub(super) fn pieces(vocabulary: usize, settings: &Settings) -> impl Iterator<Item = VocabularySlice> {
    let most = vocabulary.div_ceil(settings.pieces.max(1)).next_multiple_of(PIECE_STEP);
    let soft_cap = settings.soft_cap.unwrap_or(0.0);
    let piece = move |first| {
        let classes = most.min(vocabulary - first);
        let is_fresh = first == 0;
        let is_last = first + classes == vocabulary;
        VocabularySlice { first, classes, vocabulary, is_fresh, is_last, soft_cap }
    };
    (0..vocabulary).step_by(most).map(piece)
}
