//! Scans of affine maps, which join the states of consecutive pieces of sequences.
//!
//! A piece maps the state that enters it, E, to the state that leaves it, M · E + S, where S is the leaving
//! state of a piece that begins with zeros. M is a matrix `[k, k]`; with k = 1, a factor of the whole state.
//! The first piece begins with zeros. Pieces are joined in order, one after another, in f32.

mod cpu;
pub(crate) mod cuda;
mod sizes;

use device::Backend;

use super::check;
use crate::{Result, Tensor};
use sizes::{Direction, Sizes};

/// Replaces S of each piece, `states [pieces, n, k, v]` f32, by the state that enters the piece. `maps` are
/// `[pieces, n, k, k]` f32.
///
/// # Errors
/// Shapes or types that do not agree, maps of more than 256 rows on a GPU.
pub fn forward(maps: &Tensor, states: &Tensor) -> Result<()> {
    scan("affine_scan.forward", maps, states, Direction::Forward)
}

/// Replaces the gradient that each piece adds to the state that enters it, `gradients [pieces, n, k, v]` f32,
/// by the gradient of the state that leaves it: the scan of the transposed maps, from the last piece to the
/// first. The state after the last piece has no gradient.
///
/// # Errors
/// As [`forward`].
pub fn backward(maps: &Tensor, gradients: &Tensor) -> Result<()> {
    scan("affine_scan.backward", maps, gradients, Direction::Backward)
}

fn scan(operator: &'static str, maps: &Tensor, states: &Tensor, direction: Direction) -> Result<()> {
    check::f32s(operator, &[("maps", maps), ("states", states)])?;
    check::rank(operator, "states", states, 4)?;
    let shape = states.shape();
    let dims = shape.dims();
    let sizes = Sizes { pieces: dims[0], states: dims[1], rows: dims[2], columns: dims[3] };
    check::shape(operator, "maps", maps, [sizes.pieces, sizes.states, sizes.rows, sizes.rows])?;
    match states.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            cpu::scan(&maps.values()?, &mut states.values_mut()?, sizes, direction);
            Ok(())
        }
        Backend::Cuda => cuda::scan(operator, maps, states, sizes, direction),
    }
}
