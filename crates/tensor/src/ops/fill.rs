//! Constant values.

use super::check;
use crate::{Result, Tensor};

/// Values that are made on the host at a time.
pub(crate) const PIECE: usize = 1 << 14;

/// Sets every element of an f32 tensor to `value`. Errors: another type.
pub fn constant(target: &Tensor, value: f32) -> Result<()> {
    check::f32s("fill.constant", &[("target", target)])?;
    in_pieces(target, |_, values| values.fill(value))
}

/// Fills an f32 tensor from the host, [`PIECE`] elements at a time: `make(first element, values)`.
pub(crate) fn in_pieces(target: &Tensor, make: impl Fn(usize, &mut [f32])) -> Result<()> {
    if target.device().is_meta() {
        return Ok(());
    }
    let mut values = vec![0.0f32; PIECE.min(target.elements())];
    for first in (0..target.elements()).step_by(PIECE) {
        let values = &mut values[..PIECE.min(target.elements() - first)];
        make(first, values);
        let bytes = size_of_val::<[f32]>(values);
        target.device().copy_from_host(values, target.region().part(first * size_of::<f32>(), bytes))?;
    }
    Ok(())
}
