//! Kernels of scans on GPUs: in f32, or on tensor cores.

mod plain;
mod tiles;

use super::operands::{Gradients, Operands};
use super::workspace;
use crate::{Result, Tensor};
pub(crate) use plain::FAMILY;
pub(super) use plain::backward_weight;
pub(crate) use tiles::{FAMILY_TILES, FAMILY_TILES_BACKWARD};

pub(super) fn forward(
    operator: &'static str,
    operands: Operands<'_>,
    state: Option<&Tensor>,
    workspace: &Tensor,
    y_blc: &Tensor,
) -> Result<()> {
    match workspace::tile_width(&operands) {
        Some(width) => tiles::forward(operator, operands, state, (workspace, width), y_blc),
        None => plain::forward(operator, operands, state, workspace, y_blc),
    }
}

/// Moves `state` on.
pub(super) fn advance(
    operator: &'static str,
    operands: Operands<'_>,
    state: &Tensor,
    workspace: &Tensor,
) -> Result<()> {
    match workspace::tile_width(&operands) {
        Some(width) => tiles::advance(operator, operands, state, (workspace, width)),
        None => plain::advance(operator, operands, state, workspace),
    }
}

/// Moves `gradient`, of the states after the last token, back to the first.
pub(super) fn retreat(
    operator: &'static str,
    dy_blc: &Tensor,
    operands: Operands<'_>,
    workspace: &Tensor,
    gradient: &Tensor,
) -> Result<()> {
    match workspace::tile_width(&operands) {
        Some(width) => tiles::retreat(operator, dy_blc, operands, (workspace, width), gradient),
        None => plain::retreat(operator, dy_blc, operands, workspace, gradient),
    }
}

pub(super) fn backward_input(
    operator: &'static str,
    upper: (&Tensor, Option<[&Tensor; 2]>),
    operands: Operands<'_>,
    workspace: &Tensor,
    result: &Gradients,
) -> Result<()> {
    match workspace::tile_width(&operands) {
        Some(width) => tiles::backward_input(operator, upper, operands, (workspace, width), result),
        None => plain::backward_input(operator, upper, operands, workspace, result),
    }
}
