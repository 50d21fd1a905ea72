//! The loads of experts in a step: numbers of rows, whose sums are exact in any order.

use device::{Backend, DType};

use super::cuda;
use crate::ops::check;
use crate::{Result, Tensor};

/// Writes the sum over the rows of `counts [ranks, width]` to `sums [width]`, both u32.
pub fn sum_loads(counts: &Tensor, sums: &Tensor) -> Result<()> {
    const OPERATOR: &str = "routing.sum_loads";
    check::dtype(OPERATOR, "counts", counts, DType::U32)?;
    check::dtype(OPERATOR, "sums", sums, DType::U32)?;
    check::shape(OPERATOR, "sums", sums, [counts.shape().columns()])?;
    match counts.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let counts = counts.read::<u32>()?;
            let mut sums = sums.write::<u32>()?;
            sums.fill(0);
            for counts in counts.chunks_exact(sums.len()) {
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
            }
            Ok(())
        }
        Backend::Cuda => cuda::sum_loads(OPERATOR, counts, sums),
    }
}

/// Adds `rate` to the correction of each expert whose load is below the mean, and subtracts it where the load
/// is above (Wang et al., *Auxiliary-Loss-Free Load Balancing*, 2024). `correction` is `[experts]` f32,
/// `loads` `[experts]` u32.
pub fn move_correction(correction: &Tensor, loads: &Tensor, rate: f32) -> Result<()> {
    const OPERATOR: &str = "routing.move_correction";
    check::f32s(OPERATOR, &[("correction", correction)])?;
    check::dtype(OPERATOR, "loads", loads, DType::U32)?;
    check::shape(OPERATOR, "loads", loads, correction.shape())?;
    match loads.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let loads = loads.read::<u32>()?;
            let mut correction = correction.write::<f32>()?;
            let sum = loads.iter().copied().map(u64::from).sum::<u64>();
            let experts = loads.len() as u64;
            for (correction, load) in correction.iter_mut().zip(loads.iter()) {
                *correction += match (u64::from(*load) * experts).cmp(&sum) {
                    std::cmp::Ordering::Less => rate,
                    std::cmp::Ordering::Equal => 0.0,
                    std::cmp::Ordering::Greater => -rate,
                };
            }
            Ok(())
        }
        Backend::Cuda => cuda::move_correction(OPERATOR, correction, loads, rate),
    }
}
