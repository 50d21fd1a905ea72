//! The cost of a layer.

/// The cost of one layer, in a unit of its own. The first layer includes everything before the layers, the
/// last one everything after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCost {
    /// Costs for a micro-batch: the forward pass, the input half of backward, the weights' half.
    pub passes: [u64; 3],
    /// Addition to backward if it recomputes the layer.
    pub again: u64,
    /// Cost per step of norm and optimizer; 0 if costs are counted.
    pub update: u64,
}
