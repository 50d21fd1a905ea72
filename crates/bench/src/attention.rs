//! Times causal attention, forward and backward.

use device::{Category, DType, Device, Request};
use tensor::Tensor;
use tensor::ops::attention::{self, Heads, Masks, Qkv, Settings};
use tensor::ops::random;

use crate::error::{BenchError, Result};
use crate::options::median;

/// Number of untimed calls before the timed ones.
const WARM_UP_CALLS: usize = 3;
/// Maximum number of elements of queries, keys and values together.
const MOST_ELEMENTS: u128 = 1 << 40;

/// Sizes of an attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSizes {
    /// Number of sequences.
    pub batch: usize,
    /// Number of positions in a sequence.
    pub positions: usize,
    /// Numbers and widths of the heads.
    pub heads: Heads,
    /// Number of keys visible to a query, including its own position; `None` for all up to its own.
    pub window: Option<usize>,
    /// Number of pieces per sequence, one call each, as with context parallelism; 1 for whole sequences.
    pub pieces: usize,
}

impl AttentionSizes {
    /// Returns the FLOPs over all visible pairs of query and key, for `of_keys` matmuls over the columns of
    /// keys and `of_values` matmuls over the columns of values.
    pub fn flops(&self, of_keys: u32, of_values: u32) -> f64 {
        let positions = self.positions as f64;
        let most = self.window.unwrap_or(self.positions);
        let window = most.min(self.positions) as f64;
        let pairs = window * (window + 1.0) / 2.0 + (positions - window) * window;
        let [keys, values] = [self.heads.width, self.heads.value_width].map(|width| width as f64);
        let columns = f64::from(of_keys) * keys + f64::from(of_values) * values;
        2.0 * pairs * columns * (self.batch * self.heads.query) as f64
    }

    /// Refuses sizes that fit on no device.
    fn check(&self) -> Result<()> {
        let elements = [self.batch, self.positions, self.heads.packed_columns()]
            .into_iter()
            .try_fold(1_u128, |product, size| product.checked_mul(size as u128));
        match elements {
            Some(elements) if elements <= MOST_ELEMENTS => Ok(()),
            _ => Err(BenchError::Refused(format!("{self:?}: too many queries, keys and values"))),
        }?;
        match self.positions.is_multiple_of(self.pieces) {
            true => Ok(()),
            false => {
                let text = format!("{} positions do not divide into {} pieces", self.positions, self.pieces);
                Err(BenchError::Refused(text))
            }
        }
    }
}

/// Median seconds of an attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionTime {
    /// The forward pass.
    pub forward: f64,
    /// The backward pass.
    pub backward: f64,
}

/// Returns random queries, keys and values for each call: one call, or one per piece.
fn operands(device: &Device, sizes: &AttentionSizes, dtype: DType) -> Result<Vec<Qkv<Tensor>>> {
    let AttentionSizes { batch, positions, heads, pieces, .. } = *sizes;
    if pieces == 1 {
        let qkv = random(device, "qkv", [batch, positions, heads.packed_columns()], dtype)?;
        return Ok(vec![Qkv::Packed(qkv)]);
    }
    let columns = heads.key_columns() + heads.value_columns();
    let keys_values = random(device, "keys and values", [batch, positions, columns], dtype)?;
    let piece = |index: usize| {
        let shape = [batch, positions / pieces, heads.query_columns()];
        let queries = random(device, &format!("queries {index}"), shape, dtype)?;
        Ok(Qkv::Piece { arrays: [queries, keys_values.clone()], first: index * shape[1] })
    };
    (0..pieces).map(piece).collect()
}

/// Returns an operand with random values.
pub(crate) fn random(device: &Device, name: &str, shape: [usize; 3], dtype: DType) -> Result<Tensor> {
    let operand = Tensor::empty(device, shape, dtype, Request::new(Category::Other, "attention"))?;
    random::normal(&operand, 1, name, 0.0, 1.0)?;
    Ok(operand)
}

/// Times `calls` forward and backward passes of attention over random operands. Whole sequences use packed
/// operands.
///
/// # Errors
/// There is no kernel for these sizes, or memory runs out.
pub fn bench_attention(
    device: &Device,
    sizes: &AttentionSizes,
    dtype: DType,
    calls: usize,
) -> Result<AttentionTime> {
    sizes.check()?;
    let AttentionSizes { batch, positions, heads, window, pieces } = *sizes;
    let widths = attention::widths(dtype);
    let refused = |width: &&usize| device.is_cuda_like() && !widths.has(**width);
    if let Some(width) = [heads.width, heads.value_width].iter().find(refused) {
        let text = format!("heads of {width} columns: a GPU has kernels for widths {widths}");
        return Err(BenchError::Refused(text));
    }
    let settings = Settings { window, ..heads.into() };
    let all = operands(device, sizes, dtype)?;
    let dy = random(device, "dy", [batch, positions / pieces, heads.output_columns()], dtype)?;
    let forward = |qkv| Ok(attention::forward(qkv, settings, Masks::default(), false)?);
    let outputs = all.iter().map(forward).collect::<Result<Vec<_>>>()?;
    let backward = |(qkv, output): (&Qkv<Tensor>, &attention::Output)| -> Result<()> {
        let attention::Output { output, logsumexp } = output;
        attention::backward(&dy, qkv, output, logsumexp, settings, Masks::default(), false)?;
        Ok(())
    };
    let forward = || all.iter().try_for_each(|qkv| forward(qkv).map(drop));
    let backward = || all.iter().zip(&outputs).try_for_each(backward);
    Ok(AttentionTime { forward: timed(device, calls, forward)?, backward: timed(device, calls, backward)? })
}

/// Returns the median seconds of `calls` calls.
pub(crate) fn timed(device: &Device, calls: usize, call: impl Fn() -> Result<()>) -> Result<f64> {
    for _ in 0..WARM_UP_CALLS.min(calls) {
        call()?;
    }
    let mut marks = vec![device.mark()?];
    for _ in 0..calls {
        call()?;
        marks.push(device.mark()?);
    }
    device.synchronize()?;
    let mut seconds = Vec::with_capacity(calls);
    for pair in marks.windows(2) {
        seconds.push(pair[0].until(&pair[1])?.unwrap_or_default().as_secs_f64());
    }
    Ok(median(&seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the FLOPs against pairs that are counted one by one: two FLOPs per pair and column.
    #[test]
    fn pairs_within_windows_count() {
        let heads = Heads { value_width: 4, ..Heads::multi(2, 8) };
        for (positions, window) in [(1, None), (7, None), (7, Some(3)), (7, Some(7)), (7, Some(100))] {
            let sizes = AttentionSizes { batch: 3, positions, heads, window, pieces: 1 };
            let seen = |query: usize| (query + 1).min(window.unwrap_or(positions));
            let pairs: usize = (0..positions).map(seen).sum();
            assert_eq!(sizes.flops(3, 2), (2 * pairs * 3 * 2 * (3 * 8 + 2 * 4)) as f64, "{sizes:?}");
        }
    }
}
