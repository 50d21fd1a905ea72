//! Workspace of the token table's gradient: lists of positions by token.

/// Most occurrences of a rare token; a frequent one has more, and whole blocks sum its rows.
pub(super) const RARE: u32 = 32;

/// Largest possible number of frequent tokens among `tokens`.
pub(super) fn most_frequent(tokens: usize) -> usize {
    tokens / (RARE as usize + 1)
}

/// Bytes of the lists, all u32: occurrences of every token, the start of every list and two more, the
/// frequent tokens, and the positions.
pub(super) fn backward_weight(tokens: usize, vocab: usize) -> usize {
    4 * (vocab + (vocab + 2) + most_frequent(tokens) + tokens)
}
