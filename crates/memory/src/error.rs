//! Errors of allocations.

use std::fmt;

use system::numbers::grouped;

use crate::raw::{RawError, Stream};
use crate::settings::SettingsError;
use crate::tag::Category;

/// Reason why an operation of the allocator failed. All counters are correct after each failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum AllocationError {
    /// Neither the cache nor the driver has enough memory.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The request exceeds what any device has. No counter changes.
    #[error("a request for {} bytes, more than an exbibyte, cannot be served by any device", grouped(*bytes))]
    RequestTooLarge { bytes: u64 },
    /// The driver failed for a reason other than lack of memory.
    #[error("the driver failed to {call}: {source}")]
    Driver { call: &'static str, source: RawError },
    #[error("block {index} is not allocated: it was freed before, or this allocator never handed it out")]
    InvalidBlock { index: u32 },
    /// A private pool was used out of order, such as closed before it was opened.
    #[error("private pool ({}, {}) {problem}", pool.0, pool.1)]
    InvalidPool { pool: (u64, u64), problem: &'static str },
    /// The driver returned an address at which no block can start.
    #[error("the driver returned a segment at {address:#x}, which is not a multiple of 512")]
    Misplaced {
        /// Address that the driver returned.
        address: u64,
    },
    /// A repeated script got an address that differs from its recording.
    #[error("a repeated allocation is at {address:#x} instead of {recorded:#x}")]
    Moved { recorded: u64, address: u64 },
    /// A setting passed at run time is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl AllocationError {
    pub(crate) fn driver(call: &'static str) -> impl FnOnce(RawError) -> AllocationError {
        move |source| AllocationError::Driver { call, source }
    }
}

/// State of the allocator when a request failed for lack of memory. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The device's number in the process.
    pub device: u32,
    /// Requested bytes.
    pub requested: u64,
    /// Size of the block after rounding.
    pub rounded: u64,
    /// Size of the segment that the driver would have had to provide.
    pub segment: u64,
    /// Capacity of the device.
    pub total: u64,
    /// Free bytes as the driver reports them.
    pub free: u64,
    /// The limit set on this allocator, if any.
    pub limit: Option<u64>,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes held from the driver.
    pub reserved: u64,
    /// Bytes of idle blocks in private pools, which a default request cannot use.
    pub private_idle: u64,
    /// The largest idle block of the request's stream in the default pools.
    pub largest_idle: u64,
    /// Whether segments are expandable.
    pub expandable_segments: bool,
    /// The stream of the request.
    pub stream: Stream,
    /// Purpose of the memory.
    pub category: Category,
    /// Path of the module that requested the memory; may be empty.
    pub module: String,
    /// Name of the operator that requested the memory; may be empty.
    pub operator: &'static str,
    /// The training step; 0 before the first.
    pub step: u32,
}

impl OutOfMemory {
    /// Returns the bytes held from the driver that belong to no allocated block and no private pool.
    #[must_use]
    pub fn unallocated(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated).saturating_sub(self.private_idle)
    }

    /// Returns the message of PyTorch 2.11 for this state, without its line about processes and its advice.
    #[must_use]
    pub fn pytorch_message(&self) -> String {
        let mut text = format!(
            "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. ",
            Bytes(self.segment),
            self.device,
            Bytes(self.total),
            Bytes(self.free)
        );
        if let Some(limit) = self.limit {
            text += &format!("{} allowed; ", Bytes(limit));
        }
        text += &self.pytorch_usage();
        text
    }

    /// Returns the part of PyTorch's message that reports the allocator's usage.
    #[must_use]
    pub fn pytorch_usage(&self) -> String {
        let allocated = self.allocated + self.private_idle;
        let mut text = format!("Of the allocated memory {} is allocated by PyTorch, ", Bytes(allocated));
        if self.private_idle > 0 {
            let idle = Bytes(self.private_idle);
            text += &format!("with {idle} allocated in private pools (e.g., CUDA Graphs), ");
        }
        text + &format!("and {} is reserved by PyTorch but unallocated.", Bytes(self.unallocated()))
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory on device {}: {} for {}",
            self.device,
            Bytes(self.requested),
            self.category.name()
        )?;
        if !self.operator.is_empty() {
            write!(f, " of {}", self.operator)?;
        }
        if !self.module.is_empty() {
            write!(f, " in {}", self.module)?;
        }
        if self.step > 0 {
            write!(f, " at step {}", self.step)?;
        }
        write!(f, " need a segment of {}; ", Bytes(self.segment))?;
        write!(f, "{} of the device's {} are free", Bytes(self.free), Bytes(self.total))?;
        if let Some(limit) = self.limit {
            write!(f, ", {} are allowed", Bytes(limit))?;
        }
        write!(f, ". The allocator holds {}: {} allocated", Bytes(self.reserved), Bytes(self.allocated))?;
        if self.private_idle > 0 {
            write!(f, ", {} idle in private pools", Bytes(self.private_idle))?;
        }
        write!(f, ", {} idle; ", Bytes(self.unallocated()))?;
        write!(f, "the largest idle block of this stream has {}.", Bytes(self.largest_idle))?;
        match (self.unallocated() >= self.rounded, self.expandable_segments) {
            (false, _) => Ok(()),
            (true, false) => {
                write!(f, " Enough is idle, but in several blocks: `expandable_segments:True` avoids that.")
            }
            (true, true) => {
                write!(
                    f,
                    " Enough is idle, but between allocated blocks, or kept for small requests or other "
                )?;
                write!(f, "streams.")
            }
        }
    }
}

/// A number of bytes that formats as in PyTorch: two decimals in the largest unit that gives more than 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..=1024 => write!(f, "{} bytes", self.0),
            1025..=0x10_0000 => write!(f, "{:.2} KiB", bytes / 1024.0),
            0x10_0001..=0x4000_0000 => write!(f, "{:.2} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_as_pytorchs() {
        for (bytes, text) in [
            (1024, "1024 bytes"),
            (1025, "1.00 KiB"),
            (1 << 20, "1024.00 KiB"),
            (3 << 20, "3.00 MiB"),
            (1 << 30, "1024.00 MiB"),
            ((1 << 30) + 1, "1.00 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
