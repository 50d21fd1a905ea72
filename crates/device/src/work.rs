//! The minimum work of a call, with which its measured time is compared.

/// Minimum bytes and FLOPs of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes read from and written to device memory.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

impl Work {
    /// Returns the FLOPs of a matmul of these sizes: two per multiplication, saturating at `u64::MAX`, which
    /// plans for sequences of millions of tokens can reach.
    #[must_use]
    pub fn flops_of_products<const N: usize>(sizes: [usize; N]) -> u64 {
        sizes.into_iter().fold(2, |flops: u64, size| flops.saturating_mul(size as u64))
    }
}

/// The division of a kernel's work into units. Predictions need it for kernels with units of different length
/// or with padding, whose time does not follow from bytes, FLOPs and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// FLOPs of whole tiles, including padding and hidden values.
    pub flops: u64,
    /// FLOPs of the longest unit of work. One multiprocessor computes a unit.
    pub longest: u64,
    /// Whether the kernel draws random numbers for dropout.
    pub drops: bool,
}

#[cfg(test)]
mod tests {
    use super::Work;

    #[test]
    fn counts_of_flops_do_not_overflow() {
        assert_eq!(Work::flops_of_products([3, 5, 7]), 210);
        assert_eq!(Work::flops_of_products([usize::MAX, 2, 3]), u64::MAX);
        assert_eq!(Work::flops_of_products([usize::MAX, 0]), 0);
    }
}
