//! Tensors that ranks access in each other's memory.

use collective::SharedLayout;
use tensor::Tensor;

/// The tensors of one or more stages that ranks share
/// ([`ProcessGroup::share`](collective::ProcessGroup::share)): the buckets and, if optimizer state is
/// sharded, the weights. Empty for a single rank, or if a library sums.
#[derive(Clone, Debug, Default)]
pub struct SharedTensors {
    /// The buckets that the sums over ranks replace.
    pub(super) sums: Vec<Tensor>,
    pub(super) weights: Vec<Tensor>,
    /// The buckets of the rank's second and further parts, by set.
    pub(super) further: Vec<Vec<Tensor>>,
}

impl SharedTensors {
    /// Appends the tensors of another stage of the rank, which must have the same lanes.
    pub fn extend(&mut self, other: SharedTensors) {
        self.sums.extend(other.sums);
        self.weights.extend(other.weights);
        self.further.resize(self.further.len().max(other.further.len()), Vec::new());
        self.further.iter_mut().zip(other.further).for_each(|(set, more)| set.extend(more));
    }

    /// Returns whether nothing is shared.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The order of the tensors in [`SharedTensors::list`].
    pub fn layout(&self) -> SharedLayout {
        let summed = self.sums.len();
        SharedLayout { common: summed + self.weights.len(), summed }
    }

    /// The tensors in the order in which they are shared.
    pub fn list(&self) -> impl Iterator<Item = &Tensor> {
        self.sums.iter().chain(&self.weights).chain(self.further.iter().flatten())
    }
}
