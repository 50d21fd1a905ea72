//! Elements of CPU tensors as f32, for operators that compute in f32 whatever the type of the tensors.
//!
//! An f32 tensor is used without a copy. A half type is widened into a copy on the heap, outside the caching
//! allocator. Results are rounded once, to nearest with ties to even, when the operator is done, as on a GPU.

use std::ops::{Deref, DerefMut};

use device::parallel::{CHUNK, for_pieces};
use device::{DType, Float, ReadGuard, WriteGuard, bf16, dispatch, f16};

use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// Elements of a floating-point tensor in f32, for reading.
pub(crate) enum Values<'a> {
    /// The memory of an f32 tensor.
    Own(ReadGuard<'a, f32>),
    /// A copy of a half type.
    Widened(Vec<f32>),
}

/// Elements of a floating-point tensor in f32, for writing. Half types are rounded and stored on drop.
pub(crate) enum ValuesMut<'a> {
    /// The memory of an f32 tensor.
    Own(WriteGuard<'a, f32>),
    /// A copy of a bf16 tensor.
    Bf16(Vec<f32>, WriteGuard<'a, bf16>),
    /// A copy of an f16 tensor.
    F16(Vec<f32>, WriteGuard<'a, f16>),
}

impl Tensor {
    /// Returns the elements in f32 for reading, on a CPU device.
    ///
    /// # Errors
    /// As for [`Tensor::read`]; a type that is not floating-point.
    pub(crate) fn values(&self) -> Result<Values<'_>> {
        match self.dtype() {
            DType::F32 => Ok(Values::Own(self.read()?)),
            dtype => dispatch!(
                dtype,
                T => Ok(Values::Widened(widened::<T>(&self.read()?))),
                _ => Err(self.not_floating("values")),
            ),
        }
    }

    /// Returns the elements in f32 for writing, on a CPU device.
    ///
    /// # Errors
    /// As for [`Tensor::write`]; a type that is not floating-point.
    pub(crate) fn values_mut(&self) -> Result<ValuesMut<'_>> {
        match self.dtype() {
            DType::F32 => Ok(ValuesMut::Own(self.write()?)),
            DType::Bf16 => {
                let guard = self.write()?;
                Ok(ValuesMut::Bf16(widened(&guard), guard))
            }
            DType::F16 => {
                let guard = self.write()?;
                Ok(ValuesMut::F16(widened(&guard), guard))
            }
            _ => Err(self.not_floating("values_mut")),
        }
    }

    fn not_floating(&self, operator: &'static str) -> TensorError {
        let expected = DType::F32;
        TensorError::DType { operator, operand: "tensor", actual: self.dtype(), expected }
    }
}

/// Rounds each of `values` to `dtype`, for an operator that reads its own stored result.
#[inline(always)]
pub(crate) fn round_to(dtype: DType, values: &mut [f32]) {
    match dtype {
        DType::Bf16 => values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32()),
        DType::F16 => values.iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32()),
        _ => {}
    }
}

fn widened<T: Float>(values: &[T]) -> Vec<f32> {
    let mut wide = vec![0.0; values.len()];
    for_pieces(&mut wide, CHUNK, |index, wide| {
        T::widen(&values[index * CHUNK..][..wide.len()], wide);
    });
    wide
}

fn round<T: Float>(values: &[f32], target: &mut [T]) {
    for_pieces(target, CHUNK, |index, target| T::round(&values[index * CHUNK..][..target.len()], target));
}

impl Drop for ValuesMut<'_> {
    fn drop(&mut self) {
        match self {
            ValuesMut::Own(_) => {}
            ValuesMut::Bf16(values, target) => round(values, target),
            ValuesMut::F16(values, target) => round(values, target),
        }
    }
}

impl Deref for Values<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Values::Own(guard) => guard,
            Values::Widened(values) => values,
        }
    }
}

impl Deref for ValuesMut<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            ValuesMut::Own(guard) => guard,
            ValuesMut::Bf16(values, _) | ValuesMut::F16(values, _) => values,
        }
    }
}

impl DerefMut for ValuesMut<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            ValuesMut::Own(guard) => guard,
            ValuesMut::Bf16(values, _) | ValuesMut::F16(values, _) => values,
        }
    }
}
