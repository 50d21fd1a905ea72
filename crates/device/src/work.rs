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
