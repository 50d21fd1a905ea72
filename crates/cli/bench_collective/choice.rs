//! What of a measurement is asked for.

use std::time::Duration;

/// The operations, as the table names them; `tree` is on GPUs only, `control` on the host only.
pub(super) const OPERATIONS: [&str; 8] =
    ["all-reduce", "tree", "reduce-scatter", "all-gather", "broadcast", "exchange", "control", "barrier"];

/// Which operations and sizes are measured, how long, and how they are printed.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) time: Duration,
    /// None: those of the transport.
    pub(super) sizes: Option<Vec<usize>>,
    /// None: all.
    pub(super) only: Option<Vec<String>>,
    pub(super) json: bool,
    /// Of the kernel that sums in the memory of several GPUs, a measurement each.
    pub(super) peer_blocks: Vec<u32>,
    /// How a GPU's memory is taken.
    pub(super) allocator: memory::Settings,
}

impl Choice {
    /// The sizes that were asked for, or else these.
    pub(super) fn sizes(&self, usual: &[usize]) -> Vec<usize> {
        self.sizes.clone().unwrap_or_else(|| usual.to_vec())
    }

    pub(super) fn wants(&self, operation: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| operation.starts_with(name.as_str())))
    }
}

/// A size such as `512`, `64KiB`, `25MiB` or `1GiB`. Errors: what is wrong with it.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];
    let found = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let bytes = found.and_then(|(number, unit)| number.parse::<usize>().ok()?.checked_mul(unit));
    match bytes {
        Some(bytes) if bytes > 0 && bytes.is_multiple_of(4) => Ok(bytes),
        Some(_) => Err("whole f32 values are needed: a multiple of 4 bytes, and not none".to_owned()),
        None => Err("a number of bytes is needed, with KiB, MiB, GiB or nothing behind it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

    use super::size;

    #[test]
    fn sizes_are_bytes_with_a_unit_or_none() {
        let good = [("8", 8), ("64KiB", 65536), ("25MiB", 25 << 20), ("1GiB", 1 << 30)];
        assert!(good.iter().all(|(text, bytes)| size(text).unwrap() == *bytes));
        assert!(
            ["", "0", "6", "MiB", "-4", "1.5MiB", "9999999999999999999GiB", "4MB"]
                .iter()
                .all(|t| size(t).is_err())
        );
    }
}
