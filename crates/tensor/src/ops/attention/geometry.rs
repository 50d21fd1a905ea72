//! Sizes of a call, and the layout of queries, keys and values in memory.

use super::heads::{Heads, Qkv};
use super::settings::Settings;
use crate::ops::check;
use crate::{DType, Result, Tensor};

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
