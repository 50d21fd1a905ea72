//! Times grouped matmuls, in which each group of rows is multiplied by its expert's weight.

use device::{Category, DType, Device, Request};
use tensor::Tensor;
use tensor::ops::experts::{self, fp8};
use tensor::ops::fp8_linear::{self, Cast, Input, MULTIPLE, Quantised, Recipe, Scaled};
use tensor::ops::routing::Routes;
use tensor::ops::{GradientTarget, random};

use crate::attention::timed;
use crate::error::{BenchError, Result};

/// Maximum number of elements of an operand.
const MOST_ELEMENTS: u128 = 1 << 40;

/// Sizes of an expert layer.
#[derive(Clone, Debug)]
pub struct ExpertSizes {
    /// Number of rows of each expert.
    pub rows: Vec<usize>,
    /// Number of outputs of an expert.
    pub outputs: usize,
    /// Number of inputs of an expert.
    pub inputs: usize,
}

system::names! {
    /// How rows are distributed over experts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Spread {
        /// Equally many rows for each expert.
        Balanced = "balanced",
        /// In proportion to 1, 1/2, 1/3 and so on.
        Skewed = "skewed",
        /// All rows for one expert.
        One = "one",
    }
}

impl Spread {
    /// Returns the number of rows of each expert: multiples of 16, which FP8 needs, with a sum of about
    /// `rows`.
    #[must_use]
    pub fn rows(self, rows: usize, experts: usize) -> Vec<usize> {
        let share = |expert: usize| match self {
            Spread::Balanced => 1.0,
            Spread::Skewed => 1.0 / (expert + 1) as f64,
            Spread::One => f64::from(u8::from(expert == 0)),
        };
        let all: f64 = (0..experts).map(share).sum();
        let expert_rows =
            |expert| (rows as f64 * share(expert) / all / MULTIPLE as f64).round() as usize * MULTIPLE;
        // Large and small groups alternate, as in real routing.
        let stride = (1..).find(|step| step * 2 > experts && gcd(*step, experts) == 1).unwrap_or(1);
        let mut spread = vec![0; experts];
        (0..experts).for_each(|expert| spread[expert * stride % experts] = expert_rows(expert));
        spread
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl ExpertSizes {
    /// Returns the FLOPs of one of the three matmuls.
    pub fn flops(&self) -> f64 {
        2.0 * (self.all_rows() * self.outputs) as f64 * self.inputs as f64
    }

    /// Returns the number of rows of all experts.
    pub fn all_rows(&self) -> usize {
        self.rows.iter().sum()
    }

    fn check(&self) -> Result<()> {
        let rows = self.all_rows().max(self.rows.len() * self.outputs) as u128;
        match rows * self.inputs.max(self.outputs) as u128 <= MOST_ELEMENTS {
            true => Ok(()),
            false => Err(BenchError::Refused(format!("{self:?}: too many elements"))),
        }
    }

    /// Returns routes that assign each row to one expert.
    fn routes(&self, device: &Device) -> Result<Routes> {
        let rows = self.all_rows();
        let experts = self.rows.len();
        let end = |expert: usize| self.rows[..expert].iter().sum::<usize>() as u32;
        let offsets: Vec<u32> = (0..=experts).map(end).collect();
        let identity: Vec<u32> = (0..rows as u32).collect();
        let counts: Vec<u32> = self.rows.iter().map(|count| *count as u32).collect();
        let words = |values: &[u32]| Tensor::from_host(device, values, [values.len()], Category::Other);
        let weights = Tensor::from_host(device, &vec![1.0f32; rows], [rows, 1], Category::Other)?;
        let slots = words(&identity)?.reshape([rows, 1])?;
        Ok(Routes {
            token_counts: None,
            weights,
            choices: slots.clone(),
            slots,
            sources: words(&identity)?,
            offsets: words(&offsets)?,
            counts: words(&counts)?,
        })
    }
}

/// Median seconds of the matmuls of an expert layer.
#[derive(Clone, Copy, Debug)]
pub struct ExpertTime {
    /// Outputs.
    pub forward: f64,
    /// Input gradients.
    pub input: f64,
    /// Weight gradients in the operands' dtype, or in bf16 for FP8 operands.
    pub weight: f64,
    /// Weight gradients accumulated in f32.
    pub weight_f32: f64,
}

/// Times `calls` calls of each matmul over random operands of `dtype`: f32, a half-precision dtype, or E4M3,
/// whose gradients are E5M2.
///
/// # Errors
/// There is no kernel for these sizes, or memory runs out.
pub fn bench_experts(device: &Device, sizes: &ExpertSizes, dtype: DType, calls: usize) -> Result<ExpertTime> {
    sizes.check()?;
    let rows = sizes.all_rows();
    let experts = sizes.rows.len();
    let computed = if dtype == DType::E4m3 { DType::Bf16 } else { dtype };
    let operand = |name: &str, shape: [usize; 2]| -> Result<Tensor> {
        let request = Request::new(Category::Other, "experts");
        let operand = Tensor::empty(device, shape, computed, request)?;
        random::normal(&operand, 1, name, 0.0, 1.0)?;
        Ok(operand)
    };
    let x = operand("x", [rows, sizes.inputs])?;
    let weight = operand("weight", [experts * sizes.outputs, sizes.inputs])?;
    let dy = operand("dy", [rows, sizes.outputs])?;
    let routes = sizes.routes(device)?;
    let target = |dtype, accumulate| -> Result<GradientTarget> {
        let request = Request::new(Category::Other, "experts");
        let shape = [experts * sizes.outputs, sizes.inputs];
        Ok(GradientTarget { tensor: Tensor::zeros(device, shape, dtype, request)?, accumulate })
    };
    let own = target(computed, false)?;
    let wide = target(DType::F32, true)?;
    if dtype != DType::E4m3 {
        let weights = |target| Ok(experts::backward_weight(&dy, &x, &routes, target)?);
        return Ok(ExpertTime {
            forward: timed(device, calls, || {
                Ok(experts::forward(&x, &weight, None, &routes, computed).map(drop)?)
            })?,
            input: timed(device, calls, || {
                Ok(experts::backward_input(&dy, &weight, &routes, computed).map(drop)?)
            })?,
            weight: timed(device, calls, || weights(&own))?,
            weight_f32: timed(device, calls, || weights(&wide))?,
        });
    }
    let x = cast(&x, DType::E4m3)?;
    let weight = cast(&weight, DType::E4m3)?;
    let dy = cast(&dy, DType::E5m2)?;
    let weights = |target| Ok(fp8::backward_weight(&dy[1], &x[1], &routes, target)?);
    Ok(ExpertTime {
        forward: timed(device, calls, || {
            Ok(fp8::forward(&x[0], &weight[0], None, &routes, computed).map(drop)?)
        })?,
        input: timed(device, calls, || {
            Ok(fp8::backward_input(&dy[0], &weight[1], &routes, computed).map(drop)?)
        })?,
        weight: timed(device, calls, || weights(&own))?,
        weight_f32: timed(device, calls, || weights(&wide))?,
    })
}

/// Casts a matrix to FP8, both as stored and transposed.
fn cast(x: &Tensor, format: DType) -> Result<[Scaled; 2]> {
    let cast = Cast::new(format, Recipe::Tensorwise).stored().transposed();
    match fp8_linear::quantise(x, Input::Plain, cast)? {
        Quantised { stored: Some(stored), transposed: Some(transposed) } => Ok([stored, transposed]),
        Quantised { .. } => Err(BenchError::Refused("a cast without a layout".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_in_multiples_over_all_experts() {
        for (spread, experts) in Spread::ALL.into_iter().flat_map(|spread| [1, 8, 128].map(|e| (spread, e))) {
            let rows = spread.rows(65_536, experts);
            let all: usize = rows.iter().sum();
            assert!(rows.len() == experts && rows.iter().all(|rows| rows.is_multiple_of(MULTIPLE)));
            assert!(all.abs_diff(65_536) <= experts * MULTIPLE / 2, "{all} {spread:?}");
        }
    }
}
