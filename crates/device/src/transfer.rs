//! Copies between host and device, and inside a device.

use half::bf16;

use crate::buffer::Region;
use crate::device::{Backend, Device};
use crate::dtype::Element;
use crate::error::{DeviceError, Result};

impl Device {
    /// Writes `values` into `target`, whose length in bytes must be theirs.
    pub fn copy_from_host<T: Element>(&self, values: &[T], target: Region<'_>) -> Result<()> {
        same_length("copy_from_host", size_of_val(values), target.bytes)?;
        match self.backend() {
            Backend::Meta => Ok(()),
            Backend::Cpu => {
                target.buffer.write::<T>(target.offset, values.len())?.copy_from_slice(values);
                Ok(())
            }
        }
    }

    /// Reads `source` into `values`; Meta has nothing to read and gives zeros.
    pub fn copy_to_host<T: Element>(&self, source: Region<'_>, values: &mut [T]) -> Result<()> {
        same_length("copy_to_host", source.bytes, size_of_val(values))?;
        match self.backend() {
            Backend::Meta => values.fill(T::zeroed()),
            Backend::Cpu => {
                let read = source.buffer.read::<T>(source.offset, values.len())?;
                values.copy_from_slice(&read);
            }
        }
        Ok(())
    }

    /// Copies `source` to `target`, of the same even length, which must not overlap.
    pub fn copy(&self, source: Region<'_>, target: Region<'_>) -> Result<()> {
        same_length("copy", source.bytes, target.bytes)?;
        match (self.backend(), words(source) && words(target)) {
            (Backend::Meta, _) => Ok(()),
            (Backend::Cpu, true) => copy_as::<u32>(source, target),
            (Backend::Cpu, false) => copy_as::<bf16>(source, target),
        }
    }

    /// Sets every byte of `target`, of even length, to zero.
    pub fn zero(&self, target: Region<'_>) -> Result<()> {
        match (self.backend(), words(target)) {
            (Backend::Meta, _) => Ok(()),
            (Backend::Cpu, true) => zero_as::<u32>(target),
            (Backend::Cpu, false) => zero_as::<bf16>(target),
        }
    }
}

/// Whether a region can be taken as 32-bit words; every element type has at least 16 bits.
fn words(region: Region<'_>) -> bool {
    region.bytes.is_multiple_of(4) && region.offset.is_multiple_of(4)
}

fn copy_as<T: Element>(source: Region<'_>, target: Region<'_>) -> Result<()> {
    let len = elements::<T>(source)?;
    let read = source.buffer.read::<T>(source.offset, len)?;
    target.buffer.write::<T>(target.offset, len)?.copy_from_slice(&read);
    Ok(())
}

fn zero_as<T: Element>(target: Region<'_>) -> Result<()> {
    target.buffer.write::<T>(target.offset, elements::<T>(target)?)?.fill(T::zeroed());
    Ok(())
}

fn elements<T>(region: Region<'_>) -> Result<usize> {
    if region.bytes.is_multiple_of(size_of::<T>()) {
        Ok(region.bytes / size_of::<T>())
    } else {
        let end = region.offset + region.bytes;
        Err(DeviceError::OutOfBounds { start: region.offset, end, bytes: region.buffer.bytes() })
    }
}

fn same_length(operator: &'static str, left: usize, right: usize) -> Result<()> {
    if left == right { Ok(()) } else { Err(DeviceError::Length { operator, left, right }) }
}
