//! Host memory that a device fills without blocking the host.

use crate::buffer::Region;
use crate::cuda::{CudaError, Pinned, PinnedCopy};
use crate::device::{Device, OnDevice};
use crate::error::{DeviceError, Result};
use crate::event::SharedEvent;

/// Host memory for copies from a device: pinned on a GPU, ordinary on the CPU, empty on Meta. It may move to
/// another thread while it is being filled.
#[derive(Debug, Default)]
pub struct HostBuffer {
    memory: Memory,
    /// End of the last copies to the memory, with the rank and device that made them.
    filling: Option<(SharedEvent, usize, String)>,
}

#[derive(Debug)]
enum Memory {
    Pinned(Pinned),
    Ordinary(Vec<u8>),
}

impl Default for Memory {
    fn default() -> Self {
        Memory::Ordinary(Vec::new())
    }
}

impl HostBuffer {
    /// Returns ordinary memory with `bytes` zeros.
    #[must_use]
    pub fn ordinary(bytes: usize) -> Self {
        HostBuffer { memory: Memory::Ordinary(vec![0; bytes]), filling: None }
    }

    /// Returns ordinary memory that has been written, so that the system provides its pages now instead of
    /// during the first copies.
    fn touched(bytes: usize) -> Self {
        HostBuffer { memory: Memory::Ordinary(vec![u8::MAX; bytes]), filling: None }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Pinned(memory) => memory.bytes(),
            Memory::Ordinary(memory) => memory.len(),
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the copies to the memory are done, without waiting.
    pub fn is_filled(&self) -> Result<bool> {
        let Some((event, rank, device)) = &self.filling else { return Ok(true) };
        let over = event.point.as_ref().map_or(Ok(true), |point| point.is_over());
        over.map_err(|source| failed(source, *rank, device))
    }

    /// Waits for the copies to the memory and returns its bytes.
    pub fn bytes(&self) -> Result<&[u8]> {
        self.wait()?;
        Ok(match &self.memory {
            Memory::Pinned(memory) => memory.slice(),
            Memory::Ordinary(memory) => memory,
        })
    }

    /// Waits for the copies to the memory and returns its bytes for writing.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.wait()?;
        Ok(match &mut self.memory {
            Memory::Pinned(memory) => memory.slice_mut(),
            Memory::Ordinary(memory) => memory,
        })
    }

    fn wait(&self) -> Result<()> {
        let Some((event, rank, device)) = &self.filling else { return Ok(()) };
        let waited = event.point.as_ref().map_or(Ok(()), |point| point.wait());
        waited.map_err(|source| failed(source, *rank, device))
    }
}

impl Drop for HostBuffer {
    /// Leaks the memory if copies to it may never end because another rank is lost: freeing it would wait in
    /// the driver.
    fn drop(&mut self) {
        if !self.is_filled().unwrap_or(false) {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

fn failed(source: CudaError, rank: usize, device: &str) -> DeviceError {
    DeviceError::Cuda { rank, device: device.to_owned(), source }
}

impl Device {
    /// Returns a function that allocates host memory of a number of bytes for copies from this device, on any
    /// thread. If a GPU's driver refuses pinned memory, it logs a warning and allocates ordinary memory.
    pub fn host_memory(&self) -> impl FnOnce(usize) -> HostBuffer + Send + use<> {
        let context = self.gpu().map(|cuda| cuda.context.clone());
        let is_meta = self.is_meta();
        move |bytes| match context {
            Some(context) if bytes > 0 => match Pinned::new(&context, bytes) {
                Ok(memory) => HostBuffer { memory: Memory::Pinned(memory), filling: None },
                Err(error) => {
                    tracing::warn!(
                        "{bytes} bytes of host memory cannot be pinned, so each copy to them holds the run \
                         up: {error}"
                    );
                    HostBuffer::touched(bytes)
                }
            },
            _ => HostBuffer::touched(if is_meta { 0 } else { bytes }),
        }
    }

    /// Copies regions to the host after the compute work enqueued so far, each to the bytes of `buffer` from
    /// an offset on. Copies to pinned memory are enqueued on the snapshot stream and not waited for: until
    /// the returned event, nobody may write to the regions. Other copies are done on return. Meta copies
    /// nothing.
    ///
    /// # Errors
    /// A region outside its buffer or beyond the end of `buffer`; errors of the driver.
    pub fn copy_to_host_buffer(
        &self,
        copies: &[(Region<'_>, usize)],
        buffer: &mut HostBuffer,
    ) -> Result<SharedEvent> {
        self.interrupt_capture("a copy to a host buffer")?;
        let mut event = SharedEvent { point: None };
        if self.is_meta() {
            return Ok(event);
        }
        let bytes = buffer.len();
        let target = |(source, start): &(Region<'_>, usize)| match start.saturating_add(source.bytes) {
            end if end <= bytes => Ok(*start..end),
            end => Err(DeviceError::OutOfBounds { start: *start, end, bytes }),
        };
        match (self.gpu_to_use()?, &mut buffer.memory) {
            (Some(cuda), Memory::Pinned(memory)) => {
                let copy = |copy: &(Region<'_>, usize)| {
                    Ok(PinnedCopy { address: copy.0.checked_address()?, target: target(copy)? })
                };
                let copies = copies.iter().map(copy).collect::<Result<Vec<_>>>()?;
                let end = cuda.copy_to_pinned(copies, memory).on(self)?;
                event.point = Some(end.into());
                buffer.filling = Some((event.clone(), self.rank(), self.description().name.clone()));
            }
            _ => {
                let bytes = buffer.bytes_mut()?;
                for copy in copies {
                    self.copy_bytes_to_host(copy.0, &mut bytes[target(copy)?])?;
                }
            }
        }
        Ok(event)
    }
}
