//! The heads of attention, and the layout of queries, keys and values in memory.

use super::settings::Settings;
use crate::ops::check;
use crate::{DType, Result, Tensor, TensorError};

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
}

impl<T> Qkv<T> {
    /// The arrays: one if packed, else queries, keys and values.
    pub fn arrays(&self) -> &[T] {
        match self {
            Qkv::Packed(array) => std::slice::from_ref(array),
            Qkv::Separate(arrays) => arrays,
        }
    }

    /// Names of [`Qkv::arrays`] in errors and reports.
    pub fn names(&self) -> &'static [&'static str] {
        match self {
            Qkv::Packed(_) => &["qkv"],
            Qkv::Separate(_) => &["queries", "keys", "values"],
        }
    }

    /// Returns the results of `f` for each array.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Qkv<U> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(f(array)),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.map(f)),
        }
    }

    /// The arrays by reference.
    pub fn as_ref(&self) -> Qkv<&T> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(array),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.each_ref()),
        }
    }

    /// The arrays by mutable reference.
    pub fn as_mut(&mut self) -> Qkv<&mut T> {
        match self {
            Qkv::Packed(array) => Qkv::Packed(array),
            Qkv::Separate(arrays) => Qkv::Separate(arrays.each_mut()),
        }
    }

    /// The arrays in the order of [`Qkv::arrays`].
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Qkv::Packed(array) => vec![array],
            Qkv::Separate(arrays) => arrays.into(),
        }
    }
}

impl<T, E> Qkv<std::result::Result<T, E>> {
    /// Returns all arrays, or the first error.
    pub fn transpose(self) -> std::result::Result<Qkv<T>, E> {
        Ok(match self {
            Qkv::Packed(array) => Qkv::Packed(array?),
            Qkv::Separate([queries, keys, values]) => Qkv::Separate([queries?, keys?, values?]),
        })
    }
}

/// Index of queries, keys and values in [`Geometry::parts`].
pub(super) const QUERY: usize = 0;
pub(super) const KEY: usize = 1;
pub(super) const VALUE: usize = 2;

/// Layout of queries, keys or values.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Index into [`Qkv::arrays`].
    pub(super) array: usize,
    /// First column in the array.
    pub(super) first: usize,
    /// Elements of the array from one row to the next.
    pub(super) stride: usize,
}

/// Sizes and layout of one call.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub(super) batch: usize,
    pub(super) time: usize,
    pub(super) heads: Heads,
    pub(super) settings: Settings,
    /// Layouts of queries, keys and values.
    pub(super) parts: [Part; 3],
    /// The operands' type, to which weights are rounded before they are multiplied.
    pub(super) dtype: DType,
}

impl Geometry {
    /// Checks shapes and types; also returns the compute type.
    pub(super) fn of(operator: &'static str, qkv: &Qkv<Tensor>, settings: Settings) -> Result<(Self, DType)> {
        let Settings { heads, .. } = settings;
        let operands: Vec<_> = qkv.names().iter().copied().zip(qkv.arrays()).collect();
        let dtype = check::computed(operator, &operands)?;
        heads.check(operator)?;
        let (query, key_value) = (heads.query_columns(), heads.key_value_columns());
        let (columns, parts): (&[usize], _) = match qkv {
            Qkv::Packed(_) => {
                let part = |first| Part { array: 0, first, stride: heads.packed_columns() };
                (&[heads.packed_columns()], [part(0), part(query), part(query + key_value)])
            }
            Qkv::Separate(_) => {
                let part = |array, stride| Part { array, first: 0, stride };
                (&[query, key_value, key_value], [part(0, query), part(1, key_value), part(2, key_value)])
            }
        };
        let (first_name, first) = operands[0];
        check::rank(operator, first_name, first, 3)?;
        let (batch, time) = match *first.shape().dims() {
            [batch, time, _] => (batch, time),
            _ => (0, 0),
        };
        for ((name, tensor), columns) in operands.iter().zip(columns) {
            check::shape(operator, name, tensor, [batch, time, *columns])?;
        }
        Ok((Geometry { batch, time, heads, settings, parts, dtype }, dtype))
    }

    /// FLOPs of `matmuls` matmuls of every query head over the causal half of the scores.
    pub(super) fn flops(&self, matmuls: u64) -> u64 {
        matmuls * (self.batch * self.time * self.time * self.heads.query_columns()) as u64
    }

    /// Factor of the scores.
    pub(super) fn scale(&self) -> f32 {
        self.settings.factor()
    }

    /// First column, in its array, of the queries (keys, values) that query head `head` reads.
    #[inline(always)]
    pub(super) fn column(&self, part: usize, head: usize) -> usize {
        let head = if part == QUERY { head } else { head / self.heads.group() };
        self.parts[part].first + head * self.heads.width
    }
}
