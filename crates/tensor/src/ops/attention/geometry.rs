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
pub(super) struct ArrayLayout {
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
    /// Queries in a sequence.
    pub(super) time: usize,
    /// Position of the first query.
    pub(super) first: usize,
    /// Rows of a sequence in the arrays of keys and values. Queries see none after the last query.
    pub(super) keys: usize,
    pub(super) heads: Heads,
    pub(super) settings: Settings,
    /// Layouts of queries, keys and values.
    pub(super) parts: [ArrayLayout; 3],
    /// The operands' type. Attention weights are rounded to it before they are multiplied.
    pub(super) dtype: DType,
}

impl Geometry {
    /// Checks shapes and types. Returns the sizes and the compute type.
    pub(super) fn check(
        operator: &'static str,
        qkv: &Qkv<Tensor>,
        settings: Settings,
    ) -> Result<(Self, DType)> {
        let Settings { heads, .. } = settings;
        let operands: Vec<_> = qkv.names().iter().copied().zip(qkv.arrays()).collect();
        let dtype = check::computed(operator, &operands)?;
        heads.check(operator)?;
        let [query, key, value] = heads.groups_of_columns();
        let (columns, parts): (&[usize], _) = match qkv {
            Qkv::Packed(_) => {
                let part = |first| ArrayLayout { array: 0, first, stride: heads.packed_columns() };
                (&[heads.packed_columns()], [part(0), part(query), part(query + key)])
            }
            Qkv::Separate(_) => {
                let part = |array, stride| ArrayLayout { array, first: 0, stride };
                (&[query, key, value], [part(0, query), part(1, key), part(2, value)])
            }
            Qkv::Piece { .. } => {
                let part = |first| ArrayLayout { array: 1, first, stride: key + value };
                let queries = ArrayLayout { array: 0, first: 0, stride: query };
                (&[query, key + value], [queries, part(0), part(key)])
            }
        };
        let (first_name, first) = operands[0];
        check::rank(operator, first_name, first, 3)?;
        let (batch, time) = match *first.shape().dims() {
            [batch, time, _] => (batch, time),
            _ => (0, 0),
        };
        let (first, keys) = match qkv {
            Qkv::Piece { arrays: [_, keys_values], first } => {
                let keys = keys_values.shape().dims().get(1).copied().unwrap_or(0);
                if first + time > keys {
                    let expected = format!("at least {} positions", first + time);
                    return Err(check::wrong(operator, "keys_values", keys_values, expected));
                }
                (*first, keys)
            }
            _ => (0, time),
        };
        let rows = if keys == time { [time; 3] } else { [time, keys, keys] };
        for (((name, tensor), columns), rows) in operands.iter().zip(columns).zip(rows) {
            check::shape(operator, name, tensor, [batch, rows, *columns])?;
        }
        Ok((Geometry { batch, time, first, keys, heads, settings, parts, dtype }, dtype))
    }

    /// Returns the number of keys that the last query sees without a window: its position + 1.
    pub(super) fn end(&self) -> usize {
        self.first + self.time
    }

    /// Returns whether the queries are all positions of the sequence.
    pub(super) fn is_whole(&self) -> bool {
        self.first == 0 && self.keys == self.time
    }

    /// Returns twice the number of pairs of a query and a key that it sees, in one head of one sequence.
    fn visible_pairs(&self) -> u64 {
        let window = self.settings.window.unwrap_or(self.end());
        let of_first = |count: usize| {
            let before = count.min(window);
            before * before + 2 * window * (count - before)
        };
        (of_first(self.end()) - of_first(self.first)) as u64
    }

    /// Returns the FLOPs of matmuls over the scores of visible keys, for all query heads. `of_keys` matmuls
    /// use the columns of keys, and `of_values` matmuls the columns of values.
    pub(super) fn flops(&self, of_keys: u64, of_values: u64) -> u64 {
        let columns = [self.heads.query_columns(), self.heads.output_columns()].map(|columns| columns as u64);
        let each = self.batch as u64 * (of_keys * columns[0] + of_values * columns[1]);
        self.visible_pairs().saturating_mul(each)
    }

    /// Returns the factor of the scores.
    pub(super) fn scale(&self) -> f32 {
        self.settings.factor()
    }

    /// Returns the first column that query head `head` reads, in the array of its queries, keys or values.
    #[inline(always)]
    pub(super) fn column(&self, part: usize, head: usize) -> usize {
        let head = if part == QUERY { head } else { head / self.heads.group() };
        self.parts[part].first + head * self.width(part)
    }

    /// Returns the columns of one head of queries, keys or values.
    #[inline(always)]
    pub(super) fn width(&self, part: usize) -> usize {
        if part == VALUE { self.heads.value_width } else { self.heads.width }
    }
}
