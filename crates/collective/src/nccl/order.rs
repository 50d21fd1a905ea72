//! Operations of a communicator, as this crate describes them and as NCCL takes them.

use std::ffi::c_int;

use cudarc::nccl::sys;
use device::{Backend, DType, Region};

use super::fault::{Fault, Result};

/// An operation of a communicator. Regions lie inside buffers of its GPU; ranks are numbers in its group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work<'a> {
    AllReduce { region: Region<'a>, dtype: DType },
    ReduceScatter { input: Region<'a>, output: Region<'a>, dtype: DType },
    AllGather { input: Region<'a>, output: Region<'a> },
    Broadcast { root: usize, region: Region<'a> },
    Send { to: usize, region: Region<'a> },
    Receive { from: usize, region: Region<'a> },
}

impl Work<'_> {
    /// The other rank of a send or receive, and its bytes.
    pub(super) fn peer(&self) -> Option<(usize, usize)> {
        match self {
            Work::Send { to: peer, region } | Work::Receive { from: peer, region } => {
                Some((*peer, region.bytes))
            }
            _ => None,
        }
    }
}

/// A [`Work`] with the addresses of its checked regions, for the thread that calls NCCL.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    AllReduce { at: usize, count: usize, kind: sys::ncclDataType_t },
    ReduceScatter { from: usize, to: usize, count: usize, kind: sys::ncclDataType_t },
    AllGather { from: usize, to: usize, bytes: usize },
    Broadcast { at: usize, bytes: usize, root: c_int },
    Send { at: usize, bytes: usize, to: c_int },
    Receive { at: usize, bytes: usize, from: c_int },
}

impl Order {
    /// # Errors
    /// A region outside a buffer of a GPU; a type that cannot be summed.
    pub(super) fn of(work: &Work<'_>) -> Result<Self> {
        Ok(match *work {
            Work::AllReduce { region, dtype } => {
                let (count, kind) = elements(region.bytes, dtype)?;
                Order::AllReduce { at: address(region)?, count, kind }
            }
            Work::ReduceScatter { input, output, dtype } => {
                let (count, kind) = elements(output.bytes, dtype)?;
                Order::ReduceScatter { from: address(input)?, to: address(output)?, count, kind }
            }
            Work::AllGather { input, output } => {
                Order::AllGather { from: address(input)?, to: address(output)?, bytes: input.bytes }
            }
            Work::Broadcast { root, region } => {
                Order::Broadcast { at: address(region)?, bytes: region.bytes, root: number(root)? }
            }
            Work::Send { to, region } => {
                Order::Send { at: address(region)?, bytes: region.bytes, to: number(to)? }
            }
            Work::Receive { from, region } => {
                Order::Receive { at: address(region)?, bytes: region.bytes, from: number(from)? }
            }
        })
    }
}

/// Returns the device address of a region.
///
/// # Errors
/// A region outside a buffer of a GPU.
fn address(region: Region<'_>) -> Result<usize> {
    let end = region.offset.checked_add(region.bytes);
    if region.buffer.backend() != Backend::Cuda || end.is_none_or(|end| end > region.buffer.bytes()) {
        return Err(Fault::internal("a region that is not inside a buffer of a GPU"));
    }
    Ok(region.buffer.address() as usize + region.offset)
}

fn elements(bytes: usize, dtype: DType) -> Result<(usize, sys::ncclDataType_t)> {
    let kind = match dtype {
        DType::F32 => sys::ncclDataType_t::ncclFloat32,
        DType::Bf16 => sys::ncclDataType_t::ncclBfloat16,
        DType::F16 => sys::ncclDataType_t::ncclFloat16,
        DType::U32 | DType::E4m3 | DType::E5m2 | DType::U8 => {
            return Err(Fault::internal("a sum of no float"));
        }
    };
    Ok((bytes / dtype.bytes(), kind))
}

pub(super) fn number(value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Fault::internal("more ranks than NCCL can count"))
}
