//! Workspaces of scans on a GPU, in f32.

use super::heads::StateHeads;
use super::operands::Operands;

/// Elements of the arrays of a workspace, in their order.
pub(super) struct WorkspaceSizes {
    /// Elements of the states that enter chunks; the gradients of the states that leave them take as many.
    pub(super) states: usize,
    /// Factors of the states that enter chunks.
    pub(super) kept: usize,
    /// Gradients of B and C of single heads.
    pub(super) heads: usize,
}

impl WorkspaceSizes {
    pub(super) fn new(operands: &Operands<'_>) -> Self {
        let StateHeads { heads, width, states, .. } = operands.heads;
        let kept = operands.xbc.shape().dims()[0] * operands.chunks() * heads;
        let heads = operands.xbc.shape().rows() * heads * 2 * states;
        WorkspaceSizes { states: kept * states * width, kept, heads }
    }
}

pub(super) fn forward_bytes(operands: &Operands<'_>) -> usize {
    let WorkspaceSizes { states, kept, .. } = WorkspaceSizes::new(operands);
    4 * (states + kept)
}

pub(super) fn retreat_bytes(operands: &Operands<'_>) -> usize {
    let WorkspaceSizes { states, kept, .. } = WorkspaceSizes::new(operands);
    4 * (2 * states + kept)
}

pub(super) fn backward_bytes(operands: &Operands<'_>) -> usize {
    let WorkspaceSizes { states, kept, heads } = WorkspaceSizes::new(operands);
    4 * (2 * states + kept + heads)
}
