//! Operands of NCCL's calls.

use std::ffi::c_int;

use cudarc::nccl::sys;
use device::{Backend, DType, Region};

use super::fault::{Fault, Result};

/// A range of a GPU's memory by address, for the thread that calls NCCL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) address: usize,
    pub(super) bytes: usize,
}

impl Span {
    /// Returns the address range of a region.
    ///
    /// # Errors
    /// The region is not inside a GPU buffer.
    pub(super) fn new(region: &Region<'_>) -> Result<Self> {
        let end = region.offset.checked_add(region.bytes);
        if region.buffer.backend() != Backend::Cuda || end.is_none_or(|end| end > region.buffer.bytes()) {
            return Err(Fault::internal("a region that is not inside a buffer of a GPU"));
        }
        Ok(Span { address: region.buffer.address() as usize + region.offset, bytes: region.bytes })
    }

    /// Returns the number of elements and NCCL's code of the dtype.
    pub(super) fn elements(self, dtype: DType) -> Result<(usize, sys::ncclDataType_t)> {
        let kind = match dtype {
            DType::F32 => sys::ncclDataType_t::ncclFloat32,
            DType::Bf16 => sys::ncclDataType_t::ncclBfloat16,
            DType::F16 => sys::ncclDataType_t::ncclFloat16,
            DType::U32 | DType::E4m3 | DType::E5m2 | DType::U8 => {
                return Err(Fault::internal("a sum of no float"));
            }
        };
        Ok((self.bytes / dtype.bytes(), kind))
    }
}

/// Converts a number of ranks to NCCL's type.
pub(super) fn number(value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Fault::internal("more ranks than NCCL can count"))
}
