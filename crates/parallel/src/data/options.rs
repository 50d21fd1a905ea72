//! Options of the reduction of gradients.

use device::DType;

use super::lanes::Lanes;

/// How gradients are added over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Plimsoll adds, in the order of a fixed tree: the same bits on every grid.
    Tree,
    /// The transport adds, in an order of its own: the same bits on the same grid.
    Library,
}

impl Reduction {
    /// Every way.
    pub const ALL: [Reduction; 2] = [Reduction::Tree, Reduction::Library];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Tree => "tree",
            Reduction::Library => "nccl",
        }
    }
}

/// Options of a [`GradientReduction`](super::GradientReduction).
#[derive(Clone, Copy, Debug)]
pub struct ReductionOptions {
    /// Lanes of this rank.
    pub lanes: Lanes,
    /// Number of data-parallel ranks.
    pub ranks: usize,
    /// This rank's coordinate along [`Axis::Data`](crate::Axis::Data).
    pub rank: usize,
    /// Type of gradients, to which each lane's sum and each node of the tree is rounded: f32, or the type of
    /// the weights.
    pub dtype: DType,
    /// Bytes that a bucket of several gradients does not exceed.
    pub bucket_bytes: usize,
    /// How gradients are added over ranks.
    pub reduction: Reduction,
    /// ZeRO stage: from 1 on, each rank gets only the sums of the parts that it owns.
    pub zero_stage: u32,
    /// True where the model ends: losses are added here.
    pub loss: bool,
}
