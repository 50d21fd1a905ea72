//! Operands of one sequence on the host.

use crate::ops::gated_delta_rule::operands::DeltaSettings;

/// Operands of one sequence.
pub(super) struct Sequence<'a> {
    pub(super) time: usize,
    pub(super) settings: DeltaSettings,
    pub(super) qkv: &'a [f32],
    pub(super) decay: &'a [f32],
    pub(super) rate: &'a [f32],
    pub(super) documents: Option<&'a [u32]>,
}
