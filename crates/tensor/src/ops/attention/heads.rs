//! The heads of attention, and the arrays of queries, keys and values.

use crate::{Result, TensorError};

/// Numbers and widths of attention heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads, a divisor of `query`. Consecutive query heads share one: all of them with 1
    /// (multi-query), none with `query` (multi-head), some in between (grouped-query).
    pub key_value: usize,
    /// Columns of a query or key head.
    pub width: usize,
    /// Columns of a value head, and of a head of the output.
    pub value_width: usize,
    /// Key and value heads of all ranks that share the heads; `key_value` if none do. On it depends how
    /// gradients are added, so that bits are equal on any number of ranks.
    pub all_key_value: usize,
}

/// Key heads, times parts of their query heads, with which gradients of keys occupy enough of a GPU.
const ENOUGH_PARTS: usize = 8;

impl Heads {
    /// Returns multi-head attention: `count` query heads with one key and value head each.
    pub fn multi(count: usize, width: usize) -> Self {
        Heads::grouped(count, count, width)
    }

    /// Returns `query` query heads and `key_value` key and value heads, all of one width.
    pub const fn grouped(query: usize, key_value: usize, width: usize) -> Self {
        Heads { query, key_value, width, value_width: width, all_key_value: key_value }
    }

    /// Returns whether values are as wide as keys.
    pub fn are_equally_wide(&self) -> bool {
        self.width == self.value_width
    }

    /// Returns the query heads per key and value head.
    pub fn group(&self) -> usize {
        self.query / self.key_value.max(1)
    }

    /// Returns the equal parts of the query heads that share a key head. On a GPU, gradients of keys and
    /// values are sums of the parts' sums. With the parts of all key heads there are about [`ENOUGH_PARTS`].
    pub(in crate::ops) fn parts(&self) -> usize {
        let wanted = ENOUGH_PARTS.div_ceil(self.all_key_value.max(1));
        let group = self.group();
        let divisors = (1..=group).filter(|parts| group.is_multiple_of(*parts));
        // The nearest ratio.
        let distance = |parts: usize| (parts as f64 / wanted as f64).ln().abs();
        divisors.min_by(|one, other| distance(*one).total_cmp(&distance(*other))).unwrap_or(1)
    }

    /// Returns the columns of all query heads.
    pub fn query_columns(&self) -> usize {
        self.query * self.width
    }

    /// Returns the columns of all key heads.
    pub fn key_columns(&self) -> usize {
        self.key_value * self.width
    }

    /// Returns the columns of all value heads.
    pub fn value_columns(&self) -> usize {
        self.key_value * self.value_width
    }

    /// Returns the columns of attention's output.
    pub fn output_columns(&self) -> usize {
        self.query * self.value_width
    }

    /// Returns the columns of [`Qkv::Packed`].
    pub fn packed_columns(&self) -> usize {
        self.query_columns() + self.key_columns() + self.value_columns()
    }

    /// Returns the columns of queries, of keys and of values in [`Qkv::Packed`].
    pub fn groups_of_columns(&self) -> [usize; 3] {
        [self.query_columns(), self.key_columns(), self.value_columns()]
    }

    /// Returns the heads of one of `shards` equal shards. `shards` divides both numbers of heads.
    #[must_use]
    pub fn divided(self, shards: usize) -> Self {
        Heads { query: self.query / shards, key_value: self.key_value / shards, ..self }
    }

    pub(in crate::ops) fn check(&self, operator: &'static str) -> Result<()> {
        let Heads { query, key_value, width, value_width, .. } = *self;
        let exist = query > 0 && key_value > 0 && width > 0 && value_width > 0;
        if exist && query.is_multiple_of(key_value) {
            return Ok(());
        }
        Err(TensorError::Heads { operator, query, key_value, width })
    }
}

/// Queries, keys and values, or their gradients.
#[derive(Clone, Copy, Debug)]
pub enum Qkv<T> {
    /// One array: the columns of all query heads, then all key heads, then all value heads.
    Packed(T),
    /// Queries, keys and values as three arrays.
    Separate([T; 3]),
    /// Queries of consecutive positions of a sequence, with the keys and values of all its positions.
    Piece {
        /// Two arrays `[batch, positions, columns]`: the queries; and the keys of all positions, followed in
        /// each row by the values.
        arrays: [T; 2],
        /// Position of the first query.
        first: usize,
    },
}

impl<T> Qkv<T> {
    /// Returns the underlying arrays: one if packed; queries, keys and values if separate; queries, then keys
    /// with values for a piece.
    pub fn arrays(&self) -> &[T] {
        match self {
            Qkv::Packed(array) => std::slice::from_ref(array),
            Qkv::Separate(arrays) => arrays,
            Qkv::Piece { arrays, .. } => arrays,
        }
    }

    /// Returns the names of [`Qkv::arrays`] in errors and reports.
    pub fn names(&self) -> &'static [&'static str] {
        match self {
            Qkv::Packed(_) => &["qkv"],
            Qkv::Separate(_) => &["queries", "keys", "values"],
            Qkv::Piece { .. } => &["queries", "keys_values"],
        }
    }

    /// Applies `f` to each array.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Qkv<U> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(f(array)),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.map(f)),
            Qkv::Piece { arrays, first } => Qkv::Piece { arrays: arrays.map(f), first },
        }
    }

    /// Returns the arrays by reference.
    pub fn as_ref(&self) -> Qkv<&T> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(array),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.each_ref()),
            Qkv::Piece { arrays, first } => Qkv::Piece { arrays: arrays.each_ref(), first: *first },
        }
    }

    /// Returns the arrays by mutable reference.
    pub fn as_mut(&mut self) -> Qkv<&mut T> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(array),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.each_mut()),
            Qkv::Piece { arrays, first } => Qkv::Piece { arrays: arrays.each_mut(), first: *first },
        }
    }

    /// Returns the arrays in the order of [`Qkv::arrays`].
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Qkv::Packed(array) => vec![array],
            Qkv::Separate(arrays) => arrays.into(),
            Qkv::Piece { arrays, .. } => arrays.into(),
        }
    }
}

impl<T, E> Qkv<std::result::Result<T, E>> {
    /// Returns all arrays, or the first error.
    pub fn transpose(self) -> std::result::Result<Qkv<T>, E> {
        Ok(match self {
            Qkv::Packed(array) => Qkv::Packed(array?),
            Qkv::Separate([queries, keys, values]) => Qkv::Separate([queries?, keys?, values?]),
            Qkv::Piece { arrays: [queries, keys_values], first } => {
                Qkv::Piece { arrays: [queries?, keys_values?], first }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_key_heads_have_parts() {
        for (query, key_value, expected) in [
            (32, 32, 1),
            (32, 8, 1),
            (2, 2, 1),
            (8, 1, 8),
            (71, 1, 1),
            (48, 1, 8),
            (19, 1, 19),
            (14, 2, 7),
            (12, 2, 3),
            (16, 2, 4),
            (9, 3, 3),
            (32, 4, 2),
            (28, 4, 1),
            (15, 5, 3),
        ] {
            let heads = Heads::grouped(query, key_value, 64);
            assert_eq!(heads.parts(), expected, "{query}/{key_value}");
            assert_eq!(heads.divided(key_value).parts(), expected);
        }
    }
}
