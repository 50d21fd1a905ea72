//! Workspace of cross-entropy.

/// Bytes of the forward pass: one f32 loss per row.
pub(super) fn forward(rows: usize) -> usize {
    4 * rows
}
