//! Elements of one parameter that a rule updates on the CPU.

/// Maximum number of state tensors of a rule.
pub(super) const MOST_STATES: usize = 2;

/// Elements of one parameter with their gradients and states, all slices of one length.
pub(super) struct UpdateOperands<'a, G> {
    pub(super) weight: &'a mut [f32],
    pub(super) gradient: &'a [G],
    /// The rule's states in order; unused slices are empty.
    pub(super) states: [&'a mut [f32]; MOST_STATES],
    pub(super) decay: bool,
}
