//! Some elements of one parameter, as a rule updates them on the CPU.

/// The most tensors that a rule keeps for a parameter.
pub(super) const MOST_STATES: usize = 2;

/// Slices of as many elements each.
pub(super) struct Piece<'a, G> {
    pub(super) weight: &'a mut [f32],
    pub(super) gradient: &'a [G],
    /// The rule's tensors in its order; further ones are empty.
    pub(super) states: [&'a mut [f32]; MOST_STATES],
    /// Whether weight decay applies.
    pub(super) decay: bool,
}
