//! Copies between host and device, and within a device.

use crate::buffer::Region;
use crate::call_log::CopyKind;
use crate::cuda::{Cuda, FETCH_BYTES, Fetch, PeerAddress};
use crate::device::{Device, OnDevice};
use crate::dtype::{Element, Float};
use crate::error::{DeviceError, Result};
use crate::parallel::{CHUNK, for_pieces};
use crate::repeat::Repeat;
use crate::stream::StreamKind;
use crate::work::Work;

/// Bytes that one thread copies or clears at a time.
const PIECE: usize = 1 << 22;

impl Device {
    /// Copies `values` to `target`, which must have the same number of bytes. `values` may change right after
    /// the call.
    pub fn copy_from_host<T: Element>(&self, values: &[T], target: Region<'_>) -> Result<()> {
        self.copy_from_host_on(values, target, StreamKind::Compute)
    }

    /// Copies as [`Device::copy_from_host`] does, on the stream `stream`.
    pub fn copy_from_host_on<T: Element>(
        &self,
        values: &[T],
        target: Region<'_>,
        stream: StreamKind,
    ) -> Result<()> {
        same_length("copy_from_host", size_of_val(values), target.bytes)?;
        match self.gpu_to_use()? {
            Some(cuda) => self.upload(cuda, bytemuck::cast_slice(values), target, stream),
            None if self.is_meta() => {
                self.log_copy(CopyKind::FromHost, target.bytes, stream);
                Ok(())
            }
            None => {
                self.settle()?;
                target.buffer.write::<T>(target.offset, values.len())?.copy_from_slice(values);
                Ok(())
            }
        }
    }

    /// Copies `source` to `values` and waits for the device. On Meta, `values` become zeros.
    pub fn copy_to_host<T: Element>(&self, source: Region<'_>, values: &mut [T]) -> Result<()> {
        same_length("copy_to_host", source.bytes, size_of_val(values))?;
        match self.gpu_to_use()? {
            Some(cuda) => self.download(cuda, source, bytemuck::cast_slice_mut(values))?,
            None if self.is_meta() => {
                self.log_copy(CopyKind::ToHost, source.bytes, StreamKind::Compute);
                values.fill(T::zeroed());
            }
            None => {
                self.settle()?;
                let read = source.buffer.read::<T>(source.offset, values.len())?;
                values.copy_from_slice(&read);
            }
        }
        Ok(())
    }

    /// Copies elements of any type, as bytes, to `target` of the same length.
    pub fn copy_bytes_from_host(&self, bytes: &[u8], target: Region<'_>) -> Result<()> {
        same_length("copy_bytes_from_host", bytes.len(), target.bytes)?;
        match (self.gpu_to_use()?, words(target)) {
            (Some(cuda), _) => self.upload(cuda, bytes, target, StreamKind::Compute),
            (None, _) if self.is_meta() => {
                self.log_copy(CopyKind::FromHost, target.bytes, StreamKind::Compute);
                Ok(())
            }
            (None, is_words) => {
                self.settle()?;
                if is_words { write_as::<u32>(bytes, target) } else { write_as::<u8>(bytes, target) }
            }
        }
    }

    /// Copies elements of any type from `source` as bytes, of the same length, and waits for the device. On
    /// Meta, `bytes` become zeros.
    pub fn copy_bytes_to_host(&self, source: Region<'_>, bytes: &mut [u8]) -> Result<()> {
        same_length("copy_bytes_to_host", source.bytes, bytes.len())?;
        match (self.gpu_to_use()?, words(source)) {
            (Some(cuda), _) => self.download(cuda, source, bytes),
            (None, _) if self.is_meta() => {
                self.log_copy(CopyKind::ToHost, source.bytes, StreamKind::Compute);
                bytes.fill(0);
                Ok(())
            }
            (None, is_words) => {
                self.settle()?;
                if is_words { read_as::<u32>(source, bytes) } else { read_as::<u8>(source, bytes) }
            }
        }
    }

    /// Rounds `values` to another floating-point type and copies them to `target`, in one pass. `values` may
    /// change right after the call.
    pub fn round_from_host<T: Element + Float>(&self, values: &[f32], target: Region<'_>) -> Result<()> {
        same_length("round_from_host", values.len() * size_of::<T>(), target.bytes)?;
        match self.gpu_to_use()? {
            Some(cuda) => {
                let fill = |first: usize, part: &mut [u8]| {
                    let rounded: &mut [T] = bytemuck::cast_slice_mut(part);
                    T::round(&values[first / size_of::<T>()..][..rounded.len()], rounded);
                };
                self.fill_from_host(cuda, &fill, target, StreamKind::Compute)
            }
            None if self.is_meta() => {
                self.log_copy(CopyKind::FromHost, target.bytes, StreamKind::Compute);
                Ok(())
            }
            None => {
                self.settle()?;
                let mut rounded = target.buffer.write::<T>(target.offset, values.len())?;
                for_pieces(&mut rounded, CHUNK, |index, piece| {
                    T::round(&values[index * CHUNK..][..piece.len()], piece);
                });
                Ok(())
            }
        }
    }

    fn upload(&self, cuda: &Cuda, bytes: &[u8], target: Region<'_>, stream: StreamKind) -> Result<()> {
        let fill = |first: usize, part: &mut [u8]| part.copy_from_slice(&bytes[first..][..part.len()]);
        self.fill_from_host(cuda, &fill, target, stream)
    }

    /// Copies to all of `target` what `fill(first, part)` writes from byte `first` on.
    fn fill_from_host(
        &self,
        cuda: &Cuda,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
        target: Region<'_>,
        stream: StreamKind,
    ) -> Result<()> {
        self.interrupt_capture("a copy from the host")?;
        let address = target.checked_address()?;
        let stream = cuda.streams.handle(stream);
        let timed = cuda.timed(stream, "copy", || "from host".to_owned(), moved(target.bytes));
        let copied = cuda.staging.borrow_mut().upload(target.bytes, fill, address, stream);
        copied.and_then(|()| timed.finish()).on(self)
    }

    fn download(&self, cuda: &Cuda, source: Region<'_>, bytes: &mut [u8]) -> Result<()> {
        self.interrupt_capture("a copy to the host")?;
        let address = source.checked_address()?;
        let stream = cuda.streams.handle(StreamKind::Compute);
        let copied = cuda.staging.borrow_mut().download(address, bytes, stream);
        copied.on(self)
    }

    /// Starts to copy `source`, at most 64 elements, to the host. [`HostCopy::wait`] returns the values,
    /// without waiting for work enqueued after this call.
    pub fn begin_copy_to_host<T: Element>(&self, source: Region<'_>) -> Result<HostCopy<T>> {
        let elements = elements::<T>(source)?;
        let Some(cuda) = self.gpu_to_use()? else {
            let mut values = vec![T::zeroed(); elements];
            if self.is_logging() {
                self.log_copy(CopyKind::ToHostLater, source.bytes, StreamKind::Compute);
            } else {
                self.copy_to_host(source, &mut values)?;
            }
            return Ok(HostCopy(Coming::Here(values)));
        };
        if source.bytes > FETCH_BYTES {
            let operator = "begin_copy_to_host";
            return Err(DeviceError::Length { operator, left: source.bytes, right: FETCH_BYTES });
        }
        self.interrupt_capture("a copy to the host")?;
        let address = source.checked_address()?;
        let stream = cuda.streams.handle(StreamKind::Compute);
        let fetch = cuda.fetches.begin(address, source.bytes, stream);
        Ok(HostCopy(Coming::Fetched(self.clone(), fetch.on(self)?)))
    }

    /// Copies `source` to `target`, which must have the same length and must not overlap it.
    pub fn copy(&self, source: Region<'_>, target: Region<'_>) -> Result<()> {
        self.copy_on(source, target, StreamKind::Compute)
    }

    /// Copies as [`Device::copy`] does, on the stream `stream`.
    pub fn copy_on(&self, source: Region<'_>, target: Region<'_>, stream: StreamKind) -> Result<()> {
        same_length("copy", source.bytes, target.bytes)?;
        match self.gpu_to_use()? {
            Some(cuda) if stream == StreamKind::Compute => cuda.copy(source, target, stream)?.on(self),
            Some(cuda) => {
                let copy = || {
                    cuda.copy(source, target, stream)?.on(self)?;
                    Ok(((), Repeat::Copy { source: source.outlive(), target: target.outlive(), stream }))
                };
                self.between_graphs(copy)
            }
            None if self.is_meta() => {
                self.log_copy(CopyKind::Within, source.bytes, stream);
                Ok(())
            }
            None => {
                self.settle()?;
                copy_words(source, target)
            }
        }
    }

    /// Copies to memory of another rank that this GPU can access, of the same length.
    pub fn copy_to_peer(
        &self,
        source: PeerAddress<'_>,
        target: PeerAddress<'_>,
        stream: StreamKind,
    ) -> Result<()> {
        same_length("copy_to_peer", source.bytes(), target.bytes())?;
        let cuda = self.gpu_or_refuse("copy_to_peer")?;
        self.interrupt_capture("a copy to a peer")?;
        let copied = cuda.copy_between("to peer", source, target, stream);
        copied.on(self)
    }

    /// Copies from memory of another rank that this GPU can access, of the same length.
    pub fn copy_from_peer(
        &self,
        source: PeerAddress<'_>,
        target: Region<'_>,
        stream: StreamKind,
    ) -> Result<()> {
        same_length("copy_from_peer", source.bytes(), target.bytes)?;
        let cuda = self.gpu_or_refuse("copy_from_peer")?;
        self.interrupt_capture("a copy from a peer")?;
        let copied = cuda.copy_between("from peer", source, PeerAddress::from_region(target)?, stream);
        copied.on(self)
    }

    /// Sets every byte of `target` to zero.
    pub fn zero(&self, target: Region<'_>) -> Result<()> {
        match (self.gpu_to_use()?, words(target)) {
            (Some(cuda), _) => cuda.zero(target)?.on(self),
            (None, _) if self.is_meta() => {
                self.log_copy(CopyKind::Zero, target.bytes, StreamKind::Compute);
                Ok(())
            }
            (None, is_words) => {
                self.settle()?;
                if is_words { zero_as::<u32>(target) } else { zero_as::<u8>(target) }
            }
        }
    }
}

/// Values that are being copied to the host.
pub struct HostCopy<T>(Coming<T>);

enum Coming<T> {
    Here(Vec<T>),
    Fetched(Device, Fetch),
}

impl<T: Element> HostCopy<T> {
    /// Waits for the copy and returns the values.
    pub fn wait(&self) -> Result<Vec<T>> {
        match &self.0 {
            Coming::Here(values) => Ok(values.clone()),
            Coming::Fetched(device, fetch) => {
                let bytes = fetch.wait().on(device)?;
                Ok(bytemuck::pod_collect_to_vec(&bytes))
            }
        }
    }
}

impl<T> std::fmt::Debug for HostCopy<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostCopy")
    }
}

fn moved(bytes: usize) -> Work {
    Work { bytes: bytes as u64, flops: 0 }
}

/// Returns whether a region can be copied as 32-bit words.
fn words(region: Region<'_>) -> bool {
    region.bytes.is_multiple_of(4) && region.offset.is_multiple_of(4)
}

/// Copies on the host, in 32-bit words if both regions consist of whole words.
pub(crate) fn copy_words(source: Region<'_>, target: Region<'_>) -> Result<()> {
    match words(source) && words(target) {
        true => copy_as::<u32>(source, target),
        false => copy_as::<u8>(source, target),
    }
}

fn copy_as<T: Element>(source: Region<'_>, target: Region<'_>) -> Result<()> {
    let len = elements::<T>(source)?;
    let read = source.buffer.read::<T>(source.offset, len)?;
    target.buffer.write::<T>(target.offset, len)?.copy_from_slice(&read);
    Ok(())
}

fn write_as<T: Element>(bytes: &[u8], target: Region<'_>) -> Result<()> {
    let mut write = target.buffer.write::<T>(target.offset, elements::<T>(target)?)?;
    bytemuck::cast_slice_mut(&mut write).copy_from_slice(bytes);
    Ok(())
}

fn read_as<T: Element>(source: Region<'_>, bytes: &mut [u8]) -> Result<()> {
    let read = source.buffer.read::<T>(source.offset, elements::<T>(source)?)?;
    let read: &[u8] = bytemuck::cast_slice(&read);
    for_pieces(bytes, PIECE, |index, piece| piece.copy_from_slice(&read[index * PIECE..][..piece.len()]));
    Ok(())
}

fn zero_as<T: Element>(target: Region<'_>) -> Result<()> {
    let mut write = target.buffer.write::<T>(target.offset, elements::<T>(target)?)?;
    for_pieces(bytemuck::cast_slice_mut(&mut write), PIECE, |_, piece: &mut [u8]| piece.fill(0));
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

pub(crate) fn same_length(operator: &'static str, left: usize, right: usize) -> Result<()> {
    if left == right { Ok(()) } else { Err(DeviceError::Length { operator, left, right }) }
}
