//! Builds a memory listing: bytes at each moment of a short program, beside PyTorch's figures for it.

use device::{Category, DType, Device, Request};
use memory::{Metric, PoolKind};
use tensor::Tensor;

use crate::error::Result;

system::names! {
    /// Origin of one of PyTorch's figures.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FigureOrigin {
        /// Printed by the listing.
        Printed = "printed",
        /// Measured with PyTorch 2.11.0 and CUDA 13.0 on a GPU, without cuBLAS's workspaces.
        Measured = "measured",
        /// Computed from the rules of PyTorch's allocator.
        Computed = "computed",
    }
}

/// PyTorch's figures for a row of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PyTorchFigures {
    /// Bytes allocated, or the count named by the row.
    pub allocated: u64,
    /// Bytes reserved; `None` if unknown.
    pub reserved: Option<u64>,
    /// Origin of both figures.
    pub origin: FigureOrigin,
}

/// A row of a memory listing: bytes allocated and reserved at one moment of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFigure {
    /// Name of the row.
    pub what: String,
    /// PyTorch's figures on a GPU; `None` if unknown.
    pub pytorch: Option<PyTorchFigures>,
    /// Measured value of the row: bytes allocated on the device, or another count that the row names.
    pub allocated: u64,
    /// Bytes reserved on the device; `None` for differences and counts.
    pub reserved: Option<u64>,
}

impl ListedFigure {
    /// Returns whether the device's figures equal PyTorch's, where known.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.pytorch.is_none_or(|pytorch| {
            let reserved = pytorch.reserved.zip(self.reserved);
            pytorch.allocated == self.allocated && reserved.is_none_or(|(theirs, here)| theirs == here)
        })
    }
}

/// A memory listing: its title, and its rows in the order of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Description of the program.
    pub title: &'static str,
    /// The rows.
    pub figures: Vec<ListedFigure>,
}

pub(super) fn printed(allocated: u64, reserved: impl Into<Option<u64>>) -> Option<PyTorchFigures> {
    Some(PyTorchFigures { allocated, reserved: reserved.into(), origin: FigureOrigin::Printed })
}

pub(super) fn measured(allocated: u64, reserved: impl Into<Option<u64>>) -> Option<PyTorchFigures> {
    Some(PyTorchFigures { allocated, reserved: reserved.into(), origin: FigureOrigin::Measured })
}

pub(super) fn computed(allocated: u64, reserved: impl Into<Option<u64>>) -> Option<PyTorchFigures> {
    Some(PyTorchFigures { allocated, reserved: reserved.into(), origin: FigureOrigin::Computed })
}

/// Bytes of a device relative to the start of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) allocated: u64,
    pub(super) reserved: u64,
    pub(super) requested: u64,
}

impl Bytes {
    fn from_device(device: &Device) -> Self {
        let statistics = device.statistics();
        let requested = statistics.metric(Metric::RequestedBytes, PoolKind::All).current;
        Bytes {
            allocated: statistics.allocated(),
            reserved: statistics.reserved(),
            requested: u64::try_from(requested).unwrap_or(0),
        }
    }
}

/// A listing under construction, and the device's bytes at its start (such as a GPU's workspace).
pub(super) struct Taken<'a> {
    pub(super) device: &'a Device,
    start: Bytes,
    pub(super) listing: Listing,
}

impl<'a> Taken<'a> {
    pub(super) fn begin(device: &'a Device, title: &'static str) -> Result<Self> {
        device.empty_cache()?;
        Ok(Taken {
            device,
            start: Bytes::from_device(device),
            listing: Listing { title, figures: Vec::new() },
        })
    }

    pub(super) fn now(&self) -> Bytes {
        let now = Bytes::from_device(self.device);
        let start = self.start;
        Bytes {
            allocated: now.allocated - start.allocated,
            reserved: now.reserved.saturating_sub(start.reserved),
            requested: now.requested - start.requested,
        }
    }

    /// Adds a row with the bytes currently allocated and reserved.
    pub(super) fn row(&mut self, what: impl Into<String>, pytorch: Option<PyTorchFigures>) {
        let Bytes { allocated, reserved, .. } = self.now();
        let row = ListedFigure { what: what.into(), pytorch, allocated, reserved: Some(reserved) };
        self.listing.figures.push(row);
    }

    /// Adds a row with a count or a difference of bytes.
    pub(super) fn count(&mut self, what: impl Into<String>, pytorch: Option<PyTorchFigures>, count: u64) {
        let row = ListedFigure { what: what.into(), pytorch, allocated: count, reserved: None };
        self.listing.figures.push(row);
    }

    pub(super) fn floats(&self, count: usize) -> Result<Tensor> {
        Ok(Tensor::empty(self.device, [count], DType::F32, Request::new(Category::Other, "memory"))?)
    }
}
