//! The heads of attention, and the arrays of queries, keys and values.

use crate::{Result, TensorError};

/// Numbers and width of attention heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; divides `query`. Consecutive query heads share one key and value head: all of
    /// them with 1 (multi-query), none with `query` (multi-head), some in between (grouped-query).
    pub key_value: usize,
    /// Columns of one head.
    pub width: usize,
}

impl Heads {
    /// Returns multi-head attention: `count` query heads with one key and value head each.
    pub fn multi(count: usize, width: usize) -> Self {
        Heads { query: count, key_value: count, width }
    }

    /// Query heads for each key and value head.
    pub fn group(&self) -> usize {
        self.query / self.key_value.max(1)
    }

    /// Columns of all query heads, equal to the output's.
    pub fn query_columns(&self) -> usize {
        self.query * self.width
    }

    /// Columns of all key heads, and of all value heads.
    pub fn key_value_columns(&self) -> usize {
        self.key_value * self.width
    }

    /// Columns of [`Qkv::Packed`].
    pub fn packed_columns(&self) -> usize {
        self.query_columns() + 2 * self.key_value_columns()
    }

    /// Columns of queries, keys and values in [`Qkv::Packed`].
    pub fn groups_of_columns(&self) -> [usize; 3] {
        [self.query_columns(), self.key_value_columns(), self.key_value_columns()]
    }

    /// Returns the heads of each of `parts` parts, which divide key and value heads.
    #[must_use]
    pub fn divided(self, parts: usize) -> Self {
        Heads { query: self.query / parts, key_value: self.key_value / parts, ..self }
    }

    pub(in crate::ops) fn check(&self, operator: &'static str) -> Result<()> {
        let Heads { query, key_value, width } = *self;
        if query > 0 && key_value > 0 && width > 0 && query.is_multiple_of(key_value) {
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
    /// Queries of some consecutive positions of a sequence.
    Piece {
        /// The queries, and the keys of all positions followed by their values, `[batch, positions, 2 · key
        /// and value columns]`.
        arrays: [T; 2],
        /// Position of the first query.
        first: usize,
    },
}

impl<T> Qkv<T> {
    /// The arrays: one if packed, else queries, keys and values.
    pub fn arrays(&self) -> &[T] {
        match self {
            Qkv::Packed(array) => std::slice::from_ref(array),
            Qkv::Separate(arrays) => arrays,
            Qkv::Piece { arrays, .. } => arrays,
        }
    }

    /// Names of [`Qkv::arrays`] in errors and reports.
    pub fn names(&self) -> &'static [&'static str] {
        match self {
            Qkv::Packed(_) => &["qkv"],
            Qkv::Separate(_) => &["queries", "keys", "values"],
            Qkv::Piece { .. } => &["queries", "keys_values"],
        }
    }

    /// Returns the results of `f` for each array.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Qkv<U> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(f(array)),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.map(f)),
            Qkv::Piece { arrays, first } => Qkv::Piece { arrays: arrays.map(f), first },
        }
    }

    /// The arrays by reference.
    pub fn as_ref(&self) -> Qkv<&T> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(array),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.each_ref()),
            Qkv::Piece { arrays, first } => Qkv::Piece { arrays: arrays.each_ref(), first: *first },
        }
    }

    /// The arrays by mutable reference.
    pub fn as_mut(&mut self) -> Qkv<&mut T> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(array),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.each_mut()),
            Qkv::Piece { arrays, first } => Qkv::Piece { arrays: arrays.each_mut(), first: *first },
        }
    }

    /// The arrays in the order of [`Qkv::arrays`].
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
