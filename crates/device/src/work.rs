//! The least work of a call, with which its measured time is compared.

/// The least work that a call must do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes read from and written to device memory.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

impl Work {
    /// Returns the FLOPs of a matmul of these sizes, or of several: two for each product. Plans of sequences
    /// of millions of tokens reach the greatest number, where counts stay.
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
