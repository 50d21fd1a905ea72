//! The parts of experts' outputs that have low-rank adapters.

/// The equal parts of each expert's outputs that have a low-rank adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptedParts {
    /// Number of experts.
    pub experts: usize,
    /// Number of equal parts of an expert's outputs: 2 for gate and up.
    pub all: usize,
    /// Indices of the parts with an adapter, in ascending order.
    pub adapted: Vec<usize>,
}
