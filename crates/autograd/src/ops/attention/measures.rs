//! Largest magnitudes beside the results of attention.

/// The results of attention that are accompanied by their largest magnitudes on a GPU, because FP8 matmuls
/// read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionMeasures {
    /// The output.
    pub output: bool,
    /// The gradients of queries, keys and values.
    pub gradients: bool,
}
