//! Elements of one parameter that a rule updates on the CPU.

/// Most state tensors of a rule.
pub(super) const MOST_STATES: usize = 2;

/// Slices of the same number of elements.
pub(super) struct Piece<'a, G> {
    pub(super) weight: &'a mut [f32],
    pub(super) gradient: &'a [G],
    /// The rule's states in its order; unused ones are empty.
    pub(super) states: [&'a mut [f32]; MOST_STATES],
    pub(super) decay: bool,
}
