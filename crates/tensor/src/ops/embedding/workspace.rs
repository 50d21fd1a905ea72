//! Workspace of the token table's gradient: lists of positions by token.

/// Maximum occurrences of a rare token. Rows of more frequent tokens are summed by whole blocks.
pub(super) const RARE: u32 = 32;

/// Returns the largest possible number of frequent tokens among `tokens`.
pub(super) fn most_frequent(tokens: usize) -> usize {
    tokens / (RARE as usize + 1)
}

/// Returns the bytes of the lists, all u32: occurrences of every token, the start of every token's list and
/// two more, the frequent tokens, and the positions.
pub(super) fn backward_weight(tokens: usize, vocab: usize) -> usize {
    4 * (vocab + (vocab + 2) + most_frequent(tokens) + tokens)
}
