//! Arrays of micro-batches as tensors.

use data::{ArrayShape, HostArray, HostData, HostType};
use device::parallel::{CHUNK, for_pieces};
use device::{Category, DType, Device, Float, StreamKind, Written, dispatch};
use tensor::{Shape, Tensor};

use crate::error::{Result, WorkerError};

/// Copies an array of a micro-batch to the device, with floating-point values rounded to `dtype`. Pixels stay
/// what they are.
pub(crate) fn upload(device: &Device, array: &HostArray, dtype: DType) -> Result<Tensor> {
    let shape = shape_of(&array.shape)?;
    Ok(match &array.data {
        HostData::U32(values) => Tensor::from_host(device, values, shape, Category::Input)?,
        HostData::U8(values) => Tensor::from_host(device, values, shape, Category::Input)?,
        HostData::F32(values) if dtype == DType::F32 => {
            Tensor::from_host(device, values, shape, Category::Input)?
        }
        HostData::F32(values) => dispatch!(
            dtype,
            T => Tensor::from_host(device, &rounded::<T>(values), shape, Category::Input)?,
            _ => Tensor::from_host(device, values, shape, Category::Input)?,
        ),
    })
}

/// Copies an array to where [`upload`] copied an earlier one of its shape.
///
/// # Errors
/// An array of another size; the device's.
pub(crate) fn upload_again(device: &Device, array: &HostArray, dtype: DType, to: Written) -> Result<()> {
    match &array.data {
        HostData::U32(values) => device.write_again(to, values)?,
        HostData::U8(values) => device.write_again(to, values)?,
        HostData::F32(values) if dtype == DType::F32 => device.write_again(to, values)?,
        HostData::F32(values) => dispatch!(
            dtype,
            T => device.write_again(to, &rounded::<T>(values))?,
            _ => device.write_again(to, values)?,
        ),
    }
    Ok(())
}

/// Returns values rounded to another type.
fn rounded<T: Float>(values: &[f32]) -> Vec<T> {
    let mut rounded = vec![T::from_f32(0.0); values.len()];
    for_pieces(&mut rounded, CHUNK, |index, piece| {
        T::round(&values[index * CHUNK..][..piece.len()], piece);
    });
    rounded
}

/// Allocates an array as [`upload`] does, without the values, which Meta does not read.
pub(crate) fn allocate(device: &Device, array: &ArrayShape, dtype: DType) -> Result<Tensor> {
    let dtype = match array.values {
        HostType::F32 => dtype,
        HostType::U32 => DType::U32,
        HostType::U8 => DType::U8,
    };
    let tensor = Tensor::for_host(device, shape_of(&array.extents)?, dtype, Category::Input)?;
    device.log_copy_from_host(tensor.bytes(), StreamKind::Compute);
    Ok(tensor)
}

/// The extents of an array of the data as a shape of tensors.
pub(crate) fn shape_of(extents: &[usize]) -> Result<Shape> {
    Shape::of(extents)
        .ok_or_else(|| WorkerError::Refused(format!("an array of {} dimensions is no tensor", extents.len())))
}
