//! The dimension of a linear layer that lanes divide.

/// The dimension of a weight `[outputs, inputs]` that lanes divide, if layers are divided.
#[derive(Clone, Copy, Debug)]
pub enum LinearCut<'a> {
    /// Outputs, each of these groups by itself. The gradient of the input is a sum over lanes.
    Outputs(&'a [usize]),
    /// Inputs. The output is a sum over lanes, after which the layer's bias is added.
    Inputs,
}

impl LinearCut<'_> {
    /// All outputs as one group.
    pub(super) const WHOLE: LinearCut<'static> = LinearCut::Outputs(&[]);
}
