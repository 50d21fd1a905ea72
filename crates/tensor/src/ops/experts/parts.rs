//! The parts of experts' outputs that have adapters.

/// The parts of the outputs of each expert that have an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptedParts {
    /// Number of experts.
    pub experts: usize,
    /// Equal parts of an expert's outputs: 2 for gate and up.
    pub all: usize,
    /// Indices of the parts with an adapter, in ascending order.
    pub adapted: Vec<usize>,
}
