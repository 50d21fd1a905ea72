//! Options to measure largest magnitudes in attention.

/// The results of attention whose largest magnitudes are measured on a GPU, because FP8 matmuls read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionMeasures {
    /// Whether to measure the output.
    pub output: bool,
    /// Whether to measure the gradients of queries, keys and values.
    pub gradients: bool,
}
