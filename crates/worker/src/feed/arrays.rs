//! Copies arrays of micro-batches to tensors.

use data::{ArrayShape, HostArray, HostData, HostType};
use device::{Category, DType, Device, Region, StreamKind, dispatch};
use tensor::{Shape, Tensor};

use crate::error::{Result, WorkerError};

/// Allocates a tensor for an array of this shape. Floating-point values have type `dtype`; integers and
/// pixels keep their type.
pub(crate) fn allocate(device: &Device, array: &ArrayShape, dtype: DType) -> Result<Tensor> {
    let dtype = match array.values {
        HostType::F32 => dtype,
        HostType::U32 => DType::U32,
        HostType::U8 => DType::U8,
    };
    Ok(Tensor::for_host(device, shape_of(&array.extents)?, dtype, Category::Input)?)
}

/// Copies an array of a micro-batch to `to`, which [`allocate`] returned for its shape.
///
/// # Errors
/// The array has another size, or the device fails.
pub(crate) fn fill(device: &Device, array: &HostArray, dtype: DType, to: Region<'_>) -> Result<()> {
    match &array.data {
        HostData::U32(values) => device.copy_from_host(values, to)?,
        HostData::U8(values) => device.copy_from_host(values, to)?,
        HostData::F32(values) if dtype == DType::F32 => device.copy_from_host(values, to)?,
        HostData::F32(values) => dispatch!(
            dtype,
            T => device.round_from_host::<T>(values, to)?,
            _ => device.copy_from_host(values, to)?,
        ),
        HostData::Shape(_) => device.log_copy_from_host(to.bytes, StreamKind::Compute),
    }
    Ok(())
}

/// Allocates a tensor for an array of a micro-batch, and copies the array to it.
pub(crate) fn upload(device: &Device, array: &HostArray, dtype: DType) -> Result<Tensor> {
    let shape = ArrayShape { extents: array.shape.clone(), values: array.data.values() };
    let tensor = allocate(device, &shape, dtype)?;
    fill(device, array, dtype, tensor.region())?;
    Ok(tensor)
}

/// Converts the extents of a host array to a tensor shape.
pub(crate) fn shape_of(extents: &[usize]) -> Result<Shape> {
    Shape::from_dims(extents)
        .ok_or_else(|| WorkerError::Refused(format!("an array of {} dimensions is no tensor", extents.len())))
}
