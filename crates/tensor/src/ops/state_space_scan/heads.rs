//! Sizes of the heads of a scan.

use device::{Category, DType, Device, Request};

use crate::{Result, Tensor};

/// Tokens of a chunk.
pub(super) const CHUNK: usize = 64;

/// Sizes of the heads of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHeads {
    /// Number of heads.
    pub heads: usize,
    /// Number of groups of heads that share B and C.
    pub groups: usize,
    /// Columns of a head.
    pub width: usize,
    /// Rows of a head's state.
    pub states: usize,
}

impl StateHeads {
    /// Returns the columns of x of all heads.
    #[must_use]
    pub const fn columns(&self) -> usize {
        self.heads * self.width
    }

    /// Returns the columns of x, B and C.
    #[must_use]
    pub const fn packed_columns(&self) -> usize {
        self.columns() + 2 * self.groups * self.states
    }

    /// Returns whether several of `parts` equal parts share a group.
    #[must_use]
    pub const fn shares_groups(&self, parts: usize) -> bool {
        self.groups < parts
    }

    /// Returns the heads of one of `parts` equal parts, with their groups or their common group.
    #[must_use]
    pub const fn divided(self, parts: usize) -> Self {
        let groups = if self.shares_groups(parts) { 1 } else { self.groups / parts };
        StateHeads { heads: self.heads / parts, groups, ..self }
    }

    /// Allocates the states of `slots` sequences, `[slots, heads, states, width]` f32.
    ///
    /// # Errors
    /// Out of memory.
    pub fn allocate(&self, device: &Device, slots: usize) -> Result<Tensor> {
        let request = Request::new(Category::Buffer, "state_space_scan.state");
        Tensor::empty(device, [slots, self.heads, self.states, self.width], DType::F32, request)
    }
}
