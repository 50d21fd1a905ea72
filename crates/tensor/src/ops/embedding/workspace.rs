//! Workspace of the token table's gradient: lists of positions by token.

/// Most occurrences of a rare token; more frequent ones are added up by whole blocks.
pub(super) const RARE: u32 = 32;

/// How many of `tokens` tokens can be frequent.
pub(super) fn most_frequent(tokens: usize) -> usize {
    tokens / (RARE as usize + 1)
}

/// Bytes of the lists, u32 each: occurrences of every token, where every list starts and two more, the
/// frequent tokens, the lists themselves.
pub(super) fn backward_weight(tokens: usize, vocab: usize) -> usize {
    4 * (vocab + (vocab + 2) + most_frequent(tokens) + tokens)
}
