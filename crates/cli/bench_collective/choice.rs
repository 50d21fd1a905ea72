//! Selection of the collectives to measure.

use std::time::Duration;

use telemetry::units::parse_bytes;

/// Names of the operations in arguments. `tree` exists only on GPUs, `control` only on the CPU.
pub(super) const OPERATIONS: [&str; 8] =
    ["all-reduce", "tree", "reduce-scatter", "all-gather", "broadcast", "exchange", "control", "barrier"];

/// Operations and sizes to measure, the time for each, and the output format.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// Time to spend on each size.
    pub(super) time: Duration,
    /// Sizes in bytes; `None` for the transport's usual sizes.
    pub(super) sizes: Option<Vec<usize>>,
    /// Names of operations; `None` for all.
    pub(super) only: Option<Vec<String>>,
    /// Whether to print lines of JSON instead of a table.
    pub(super) json: bool,
    /// Numbers of thread blocks to measure for the kernel that sums in peer memory.
    pub(super) peer_blocks: Vec<u32>,
    /// Allocator settings on the GPUs.
    pub(super) allocator: memory::Settings,
}

impl Choice {
    /// Returns the requested sizes, or `usual` by default.
    pub(super) fn sizes(&self, usual: &[usize]) -> Vec<usize> {
        self.sizes.clone().unwrap_or_else(|| usual.to_vec())
    }

    /// Returns whether to measure `operation`.
    pub(super) fn wants(&self, operation: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| operation.starts_with(name.as_str())))
    }
}

/// Parses a size such as `512`, `64KiB` or `1GiB`.
///
/// # Errors
/// The text is not a size, or not a positive multiple of 4 bytes.
pub(super) fn size(text: &str) -> Result<usize, String> {
    match parse_bytes(text).and_then(|bytes| usize::try_from(bytes).ok()) {
        Some(bytes) if bytes > 0 && bytes.is_multiple_of(4) => Ok(bytes),
        Some(_) => Err("not a positive multiple of 4 bytes, the size of an f32".to_owned()),
        None => Err("not a size: write bytes, as in 4096, 64KiB or 1GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_multiples_of_an_f32() {
        for (text, bytes) in [("8", 8), ("64KiB", 65536), ("25MiB", 25 << 20), ("1MB", 1_000_000)] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "0", "6", "MiB", "-4", "9999999999999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
