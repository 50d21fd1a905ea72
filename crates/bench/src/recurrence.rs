//! Times recurrent operators, forward and backward, and computes lower bounds of their times.

use device::{Category, DType, Device, Request};
use tensor::ops::gated_delta_rule::{self, CHUNK, DeltaHeads, DeltaSettings};
use tensor::ops::random;
use tensor::ops::state_space_scan::{self, StateHeads};
use tensor::{Shape, Tensor};

use crate::attention::timed;
use crate::error::{BenchError, Result};
use crate::rates::{Rates, rates};

/// Maximum number of elements of an operand.
const MOST_ELEMENTS: u128 = 1 << 40;

system::names! {
    /// A recurrent operator.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Recurrence {
        /// The gated delta rule with a decay per head.
        Delta = "delta",
        /// The gated delta rule with a decay per channel of a key.
        DeltaByChannel = "delta-by-channel",
        /// The scan of selective state spaces.
        Scan = "scan",
    }
}

/// Sizes of a recurrent operator's call.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceSizes {
    /// Number of sequences.
    pub batch: usize,
    /// Number of positions in a sequence.
    pub positions: usize,
    /// Number of heads with a state.
    pub heads: usize,
    /// Number of key heads, or groups of a scan, which divides `heads`.
    pub key_heads: usize,
    /// Columns of a query or key; rows of a state.
    pub width: usize,
    /// Columns of a value, and of a state.
    pub value_width: usize,
}

/// Minimum memory traffic and arithmetic of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeastWork {
    /// Bytes of operands and results. The backward pass, for which only the operands are saved, also writes
    /// and reads the states before all chunks once, in the operands' type.
    pub bytes: f64,
    /// FLOPs of matmuls over chunks of 64 tokens, counting only pairs of a token and an earlier one.
    pub flops: f64,
}

impl LeastWork {
    /// Returns the seconds of the copies or of the matmuls at a device's best rates, whichever take longer.
    fn floor(self, rates: Rates) -> f64 {
        (self.bytes / rates.bytes_per_second).max(self.flops / rates.flops_per_second)
    }
}

/// Median seconds of a call.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceTime {
    /// The forward pass.
    pub forward: f64,
    /// The backward pass.
    pub backward: f64,
    /// Floors of both passes, on a GPU.
    pub floors: Option<[f64; 2]>,
}

impl RecurrenceSizes {
    fn check(&self) -> Result<()> {
        let columns = self.heads * (2 * self.width + self.value_width);
        let elements = [self.batch, self.positions, columns]
            .into_iter()
            .try_fold(1_u128, |product, size| product.checked_mul(size as u128));
        if !self.heads.is_multiple_of(self.key_heads) {
            let text = format!("{} key heads do not divide {} heads", self.key_heads, self.heads);
            return Err(BenchError::Refused(text));
        }
        match elements {
            Some(elements) if elements <= MOST_ELEMENTS => Ok(()),
            _ => Err(BenchError::Refused(format!("{self:?}: too many elements"))),
        }
    }

    /// Returns the work of the forward and of the backward pass, with operands of `dtype`.
    pub fn least_work(&self, operator: Recurrence, dtype: DType) -> [LeastWork; 2] {
        let tokens = (self.batch * self.positions) as f64;
        let [heads, groups, width, values] =
            [self.heads, self.key_heads, self.width, self.value_width].map(|size| size as f64);
        let element = dtype.bytes() as f64;
        let packed = 2.0 * groups * width + heads * values;
        let channels = if operator == Recurrence::DeltaByChannel { width } else { 1.0 };
        let numbers = match operator {
            Recurrence::Scan => heads * element,
            Recurrence::Delta | Recurrence::DeltaByChannel => 4.0 * heads * (channels + 1.0),
        };
        let chunk = CHUNK as f64;
        let states = element * heads * width * values / chunk;
        let state = width * values;
        let [forward, backward] = match operator {
            Recurrence::Scan => [
                heads * (2.0 * state + chunk * values / 2.0) + groups * chunk * width / 2.0,
                heads * (5.0 * state + 1.5 * chunk * values) + groups * 1.5 * chunk * width,
            ],
            Recurrence::Delta | Recurrence::DeltaByChannel => [
                heads * (3.0 * state + chunk * (width + values)),
                heads * (8.0 * state + chunk * (3.0 * width + 2.5 * values)),
            ],
        };
        let operands = packed * element + numbers;
        let output = heads * values * element;
        [
            LeastWork { bytes: tokens * (operands + output), flops: 2.0 * tokens * forward },
            LeastWork {
                bytes: tokens * (2.0 * operands + output + 2.0 * states),
                flops: 2.0 * tokens * backward,
            },
        ]
    }
}

fn random(device: &Device, name: &str, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    let operand = Tensor::empty(device, shape, dtype, Request::new(Category::Other, "recurrence"))?;
    random::normal(&operand, 1, name, 0.0, 1.0)?;
    Ok(operand)
}

/// Times `calls` forward and backward passes over random operands.
///
/// # Errors
/// There is no kernel for these sizes, or memory runs out.
pub fn bench_recurrence(
    device: &Device,
    (operator, sizes): (Recurrence, &RecurrenceSizes),
    dtype: DType,
    calls: usize,
) -> Result<RecurrenceTime> {
    sizes.check()?;
    let [forward, backward] = match operator {
        Recurrence::Scan => time_scan(device, sizes, dtype, calls)?,
        Recurrence::Delta | Recurrence::DeltaByChannel => {
            time_delta(device, (operator == Recurrence::DeltaByChannel, sizes), dtype, calls)?
        }
    };
    let rates = if device.is_cuda_like() { Some(rates(device)?) } else { None };
    let floors = rates.map(|rates| sizes.least_work(operator, dtype).map(|work| work.floor(rates)));
    Ok(RecurrenceTime { forward, backward, floors })
}

fn time_delta(
    device: &Device,
    (by_channel, sizes): (bool, &RecurrenceSizes),
    dtype: DType,
    calls: usize,
) -> Result<[f64; 2]> {
    let RecurrenceSizes { batch, positions, heads, key_heads, width, value_width } = *sizes;
    let heads = DeltaHeads { key: key_heads, value: heads, width, value_width };
    let settings = DeltaSettings { heads, by_channel, epsilon: 1e-6 };
    let qkv = random(device, "qkv", [batch, positions, heads.packed_columns()], dtype)?;
    let dy = random(device, "dy", [batch, positions, heads.output_columns()], dtype)?;
    let decay = filled(device, [batch, positions, settings.decays()], -0.05)?;
    let rate = filled(device, [batch, positions, heads.value], 0.5)?;
    let operands =
        gated_delta_rule::Operands { qkv: &qkv, decay: &decay, rate: &rate, documents: None, state: None };
    let forward = || {
        gated_delta_rule::forward(&operands, settings, false)?;
        Ok(())
    };
    let backward = || {
        gated_delta_rule::backward(&dy, None, &operands, settings)?;
        Ok(())
    };
    Ok([timed(device, calls, forward)?, timed(device, calls, backward)?])
}

fn time_scan(device: &Device, sizes: &RecurrenceSizes, dtype: DType, calls: usize) -> Result<[f64; 2]> {
    let RecurrenceSizes { batch, positions, heads, key_heads, width, value_width } = *sizes;
    let heads = StateHeads { heads, groups: key_heads, width: value_width, states: width };
    let xbc = random(device, "xbc", [batch, positions, heads.packed_columns()], dtype)?;
    let dy = random(device, "dy", [batch, positions, heads.columns()], dtype)?;
    let dt = random(device, "dt", [batch, positions, heads.heads], dtype)?;
    let [a_log, d, bias] = ["a_log", "d", "bias"].map(|name| random(device, name, [heads.heads], dtype));
    let [a_log, d, bias] = [a_log?, d?, bias?];
    let operands = state_space_scan::Operands {
        xbc: &xbc,
        dt: &dt,
        a_log: &a_log,
        d: &d,
        bias: &bias,
        heads,
        limits: [0.0, f32::INFINITY],
        documents: None,
    };
    let forward = || {
        state_space_scan::forward(operands, None)?;
        Ok(())
    };
    let backward = || {
        state_space_scan::backward_input(&dy, operands, None)?;
        Ok(())
    };
    Ok([timed(device, calls, forward)?, timed(device, calls, backward)?])
}

/// Returns an f32 operand whose elements are all `value`.
fn filled(device: &Device, shape: [usize; 3], value: f32) -> Result<Tensor> {
    let elements = shape.iter().product();
    Ok(Tensor::from_host(device, &vec![value; elements], shape, Category::Other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the work of one head of 128 columns by hand: bytes and FLOPs of a token.
    #[test]
    fn work_of_a_token() {
        let sizes =
            RecurrenceSizes { batch: 1, positions: 1, heads: 1, key_heads: 1, width: 128, value_width: 128 };
        let [forward, backward] = sizes.least_work(Recurrence::Delta, DType::Bf16);
        assert_eq!(forward, LeastWork { bytes: 4.0 * 256.0 + 8.0, flops: 131_072.0 });
        let states = 2.0 * 512.0;
        assert_eq!(backward, LeastWork { bytes: 7.0 * 256.0 + 16.0 + states, flops: 352_256.0 });
    }
}
