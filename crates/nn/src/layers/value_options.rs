//! Values of attention that are keys, or that are normalised.

use autograd::{Tape, Var, Weight, ops};
use tensor::ops::attention::Heads;

use crate::error::{NnError, Result};

/// Index of the column dimension in `[batch, time, columns]`.
const COLUMNS: usize = 2;

/// Computation of a layer's values from its projection.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueOptions {
    /// Whether the projection has no values, and keys are used instead.
    pub(super) are_keys: bool,
    /// A constant weight of ones and the epsilon of a norm of each head, if values are normalised.
    pub(super) norm: Option<(Weight, f32)>,
    /// Weight and epsilon of the norm of query heads in a layer without keys and values of its own.
    pub(super) query_norm: Option<(Weight, f32)>,
}

impl ValueOptions {
    /// Returns whether the values are columns of the projection, without a norm.
    pub(super) fn is_plain(&self) -> bool {
        !self.are_keys && self.norm.is_none()
    }

    /// Completes the packed queries, keys and values of one block of `heads`.
    pub(super) fn forward(&self, tape: &Tape, qkv_blc: Var, heads: Heads) -> Result<Var> {
        if self.is_plain() {
            return Ok(qkv_blc);
        }
        let [queries, keys, values] = heads.groups_of_columns();
        let lengths = if self.are_keys { [queries, keys] } else { [queries + keys, values] };
        let parts = ops::split(tape, qkv_blc, COLUMNS, &lengths)?;
        let [first_blc, last_blc] = <[Var; 2]>::try_from(parts)
            .map_err(|parts| NnError::Sizes(format!("{} parts of keys and values", parts.len())))?;
        let values_blc = match &self.norm {
            Some((ones, epsilon)) => {
                let shape = last_blc.tensor().shape();
                let [batch, time] = [shape.dims()[0], shape.dims()[1]];
                let by_head = [batch, time * heads.key_value, heads.value_width];
                let x = ops::reshape(tape, last_blc.clone(), by_head)?;
                let x = ops::rms_norm(tape, x, ones, *epsilon)?;
                ops::reshape(tape, x, shape)?
            }
            None => last_blc.clone(),
        };
        Ok(match self.are_keys {
            true => ops::concatenate(tape, &[first_blc, last_blc, values_blc], COLUMNS)?,
            false => ops::concatenate(tape, &[first_blc, values_blc], COLUMNS)?,
        })
    }
}
