//! The heads of latent attention.

use crate::ops::attention::Heads;
use crate::ops::check;
use crate::{Result, Tensor};

/// Numbers and widths of heads whose keys share their rotated columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHeads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads.
    pub key_value: usize,
    /// Rotated columns of a query or key, an even number. All key heads share theirs.
    pub rotated: usize,
    /// Columns of a query or key without rotation.
    pub plain: usize,
    /// Columns of a value, possibly none.
    pub value_width: usize,
    /// Whether operands rotate neighbouring columns together; otherwise columns i and i + rotated/2.
    pub interleaved: bool,
}

impl LatentHeads {
    /// Returns the heads of attention over the `latents` themselves, which are keys and values at once: one
    /// key head of all latents and the rotated columns, and no separate values.
    #[must_use]
    pub fn over_latents(self, latents: usize) -> Self {
        LatentHeads { key_value: 1, plain: latents, value_width: 0, ..self }
    }

    /// Returns the columns of a query or key.
    #[must_use]
    pub fn width(&self) -> usize {
        self.rotated + self.plain
    }

    /// Returns the columns of all queries.
    #[must_use]
    pub fn query_columns(&self) -> usize {
        self.query * self.width()
    }

    /// Returns the columns of the operands: queries, unshared keys with values, and shared rotated keys.
    #[must_use]
    pub fn columns(&self) -> [usize; 3] {
        [self.query_columns(), self.key_value * (self.plain + self.value_width), self.rotated]
    }

    /// Returns the columns of queries, keys and values in one array.
    #[must_use]
    pub fn packed_columns(&self) -> usize {
        self.query_columns() + self.key_value * (self.width() + self.value_width)
    }

    /// Returns the heads of the packed array, as attention takes them.
    #[must_use]
    pub fn packed(&self) -> Heads {
        let LatentHeads { query, key_value, value_width, .. } = *self;
        // Gradients of latent heads are not added in parts.
        Heads { query, key_value, width: self.width(), value_width, all_key_value: usize::MAX }
    }

    /// Returns the index of the operand's rotated column that becomes column `column` of the result.
    #[inline(always)]
    pub(super) fn source(&self, column: usize) -> usize {
        let half = self.rotated / 2;
        match (self.interleaved, column < half) {
            (false, _) => column,
            (true, true) => 2 * column,
            (true, false) => 2 * (column - half) + 1,
        }
    }

    pub(super) fn check(&self, operator: &'static str, x: &Tensor) -> Result<()> {
        let exist = self.query > 0 && self.key_value > 0 && self.rotated > 0 && self.plain > 0;
        if exist && self.rotated.is_multiple_of(2) {
            return Ok(());
        }
        Err(check::wrong(operator, "heads", x, "heads with an even number of rotated columns".to_owned()))
    }
}
