//! The operands of a cast.

use super::input::Input;
use super::quantised::{MULTIPLE, Recipe};
use crate::ops::check;
use crate::{Result, Tensor};

/// Rows that a cast of gradients sums at once for the gradient of a bias.
pub(super) const SUMMED_ROWS: usize = 128;

/// The operands of a cast.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) operator: &'static str,
    pub(super) x: &'a Tensor,
    pub(super) input: Input,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) recipe: Recipe,
    /// Whether the factors of the layouts are known; if so, they are not computed.
    pub(super) has_factors: bool,
    /// Receives the column sums of every [`SUMMED_ROWS`] rows.
    pub(super) sums: Option<&'a Tensor>,
}

impl<'a> Call<'a> {
    /// Checks the operands and describes the cast.
    ///
    /// # Errors
    /// Another type, a number of columns that is no multiple of [`MULTIPLE`].
    pub(super) fn new(operator: &'static str, x: &'a Tensor, input: Input, recipe: Recipe) -> Result<Self> {
        check::computed(operator, &[("x", x)])?;
        let columns = input.columns(operator, x)?;
        if !columns.is_multiple_of(MULTIPLE) {
            let expected = format!("a multiple of {MULTIPLE} columns");
            return Err(check::wrong(operator, "x", x, expected));
        }
        let rows = x.shape().rows();
        Ok(Call { operator, x, input, rows, columns, recipe, has_factors: false, sums: None })
    }
}
