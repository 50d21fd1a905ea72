//! Descriptors of matrices for the tensor memory accelerator (TMA) of Hopper and later GPUs, as kernel
//! arguments.
#![allow(unsafe_code)] // the driver encodes a description

use std::ffi::c_void;

use cudarc::driver::sys;

use super::error::Named;
use super::launch::Launch;
use crate::buffer::Region;
use crate::device::OnDevice;
use crate::dtype::DType;
use crate::error::DeviceError;

/// Bytes of a row of a box, which the copy swizzles over all banks of shared memory.
const BOX_ROW_BYTES: usize = 128;
/// 64-bit words of a descriptor.
const WORDS: usize = 16;

/// A stack of matrices that a kernel reads or writes in boxes. A box has 128 bytes of columns and some rows.
/// Elements outside a matrix are read as zeros and not written.
#[derive(Clone, Copy, Debug)]
pub struct Boxes {
    /// Type of the elements: any type of one or two bytes, or f32.
    pub dtype: DType,
    /// Number of matrices.
    pub layers: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub columns: usize,
    /// Rows of a box, at most 256.
    pub box_rows: u32,
}

impl Boxes {
    /// Returns the driver's descriptor of the matrices at `address`.
    fn encode(&self, address: u64) -> std::result::Result<[u64; WORDS], super::CudaError> {
        let bytes = self.dtype.bytes();
        let sizes = [self.columns, self.rows, self.layers].map(|size| size as u64);
        let strides = [self.columns * bytes, self.rows * self.columns * bytes].map(|stride| stride as u64);
        let extent = [(BOX_ROW_BYTES / bytes.max(1)) as u32, self.box_rows, 1];
        let dtype = match bytes {
            1 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            2 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        };
        let mut map = sys::CUtensorMap { opaque: [0; WORDS] };
        // SAFETY: the driver writes the map and reads three sizes, two strides, and three extents and steps,
        // which are alive; it does not access the matrices.
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                dtype,
                3,
                address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                extent.as_ptr(),
                [1; 3].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        encoded.result().named("cuTensorMapEncodeTiled").map(|()| map.opaque)
    }
}

impl Launch<'_> {
    /// Adds a descriptor of the matrices that begin at `region`, for a `const __grid_constant__ TensorMap`
    /// parameter.
    pub fn boxes(self, region: Region<'_>, boxes: &Boxes) -> Self {
        let needed = boxes.layers * boxes.rows * boxes.columns * boxes.dtype.bytes();
        let described = region.checked_address().and_then(|address| {
            if needed > region.bytes {
                let start = region.offset;
                let bytes = region.bytes;
                return Err(DeviceError::OutOfBounds { start, end: start + needed, bytes });
            }
            // A launch that is only logged needs no driver.
            match self.device().is_meta() {
                true => Ok([0; WORDS]),
                false => boxes.encode(address).on(self.device()),
            }
        });
        self.described(described)
    }
}
