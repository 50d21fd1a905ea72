//! The cost of a layer.

/// The cost of one layer, in any one unit. The first layer has what comes before the layers, the last one
/// what comes after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCost {
    /// Costs for a micro-batch: the forward pass, the input half of backward, the weights' half.
    pub passes: [u64; 3],
    /// Added to backward where it computes the layer again.
    pub again: u64,
    /// Cost for a step of the norm and the optimizer; 0 where costs are counted.
    pub update: u64,
}
