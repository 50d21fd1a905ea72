//! The cost of a layer.

/// The cost of one layer, in an arbitrary unit. The first layer includes everything before the layers, the
/// last layer everything after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCost {
    /// Costs per micro-batch of the forward pass, the input half of backward, and the weight half of
    /// backward.
    pub passes: [u64; 3],
    /// Additional cost of backward if it recomputes the layer.
    pub again: u64,
    /// Cost per step of gradient norm and optimizer update; 0 if costs are counted.
    pub update: u64,
}
