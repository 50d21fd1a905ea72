//! Host slices of CPU buffers. Each byte may have many readers or one writer. This is checked at run time
//! when a guard is created, because several views may share a storage.
#![allow(unsafe_code)] // an address from the allocator becomes a slice

use std::ops::{Deref, DerefMut};

use crate::borrows::Borrow;
use crate::buffer::Buffer;
use crate::description::Backend;
use crate::dtype::Element;
use crate::error::{DeviceError, Result};

/// Read access to elements of a CPU buffer, until dropped.
#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    slice: &'a [T],
    release: Release<'a>,
}

/// Write access to elements of a CPU buffer, until dropped.
#[derive(Debug)]
pub struct WriteGuard<'a, T> {
    slice: &'a mut [T],
    release: Release<'a>,
}

#[derive(Debug)]
struct Release<'a> {
    buffer: &'a Buffer,
    borrow: Borrow,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let mut borrows = self.buffer.borrows.borrow_mut();
        if let Some(position) = borrows.0.iter().position(|b| *b == self.borrow) {
            borrows.0.swap_remove(position);
        }
    }
}

impl Buffer {
    /// Borrows `len` elements for reading, from byte `offset` on.
    ///
    /// # Errors
    /// The buffer is not on the host, the range is out of bounds or misaligned, or it is being written.
    pub fn read<T: Element>(&self, offset: usize, len: usize) -> Result<ReadGuard<'_, T>> {
        let (pointer, release) = self.borrow::<T>(offset, len, false)?;
        // SAFETY: `borrow` checked bounds and alignment and that no writer overlaps while the guard lives;
        // the buffer outlives the guard, its memory is initialised, and any bit pattern is a `T` (`Element:
        // Pod`).
        let slice = unsafe { std::slice::from_raw_parts(pointer, len) };
        Ok(ReadGuard { slice, release })
    }

    /// Borrows `len` elements for writing, from byte `offset` on.
    ///
    /// # Errors
    /// As for [`Buffer::read`], or it is being read.
    pub fn write<T: Element>(&self, offset: usize, len: usize) -> Result<WriteGuard<'_, T>> {
        let (pointer, release) = self.borrow::<T>(offset, len, true)?;
        // SAFETY: as in `read`, and no other guard overlaps while this one lives.
        let slice = unsafe { std::slice::from_raw_parts_mut(pointer, len) };
        Ok(WriteGuard { slice, release })
    }

    fn borrow<T: Element>(&self, offset: usize, len: usize, write: bool) -> Result<(*mut T, Release<'_>)> {
        match self.backend {
            Backend::Cpu => {}
            Backend::Cuda => return Err(DeviceError::NotOnHost { device: "cuda" }),
            Backend::Meta => return Err(DeviceError::NotOnHost { device: "meta" }),
        }
        let bytes = len.saturating_mul(size_of::<T>());
        let borrow = Borrow { start: offset, end: offset.saturating_add(bytes), write };
        if borrow.end > self.bytes || !offset.is_multiple_of(align_of::<T>()) {
            return Err(DeviceError::OutOfBounds { start: borrow.start, end: borrow.end, bytes: self.bytes });
        }
        let mut borrows = self.borrows.borrow_mut();
        if borrows.0.iter().any(|other| other.conflicts(&borrow)) {
            let access = if write { "write" } else { "read" };
            return Err(DeviceError::Aliased { start: borrow.start, end: borrow.end, access });
        }
        borrows.0.push(borrow);
        let pointer = if bytes == 0 {
            std::ptr::NonNull::dangling().as_ptr()
        } else {
            std::ptr::with_exposed_provenance_mut::<T>(self.address as usize + offset)
        };
        Ok((pointer, Release { buffer: self, borrow }))
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // The borrow lasts as long as the guard, not only for this call.
        let _ = &self.release;
        self.slice
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        let _ = &self.release;
        self.slice
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.slice
    }
}
