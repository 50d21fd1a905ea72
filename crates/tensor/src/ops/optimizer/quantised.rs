//! 8-bit states: every block of [`BLOCK`] elements stores its largest magnitude in f32, and each element the
//! code of the nearest of 256 fractions of it (Dettmers and others, *8-bit Optimizers via Block-wise
//! Quantization*, 2022).
//!
//! Rounding is to nearest, so the bits are functions of the values. Blocks never cross the border of a shard,
//! which is a multiple of [`norm::CHUNK`].

use std::sync::LazyLock;

use super::piece::MOST_STATES;
use crate::ops::norm;

/// Elements of a block, counted from the start of a parameter.
pub const BLOCK: usize = 256;
const _: () = assert!(norm::CHUNK.is_multiple_of(BLOCK));

pub(super) const CODES: usize = 256;

/// The 256 fractions that codes stand for, in increasing order.
pub(super) struct Code {
    pub(super) fractions: [f32; CODES],
    borders: [f32; CODES - 1],
    is_signed: bool,
}

static SIGNED: LazyLock<Code> = LazyLock::new(|| Code::new(true));
static UNSIGNED: LazyLock<Code> = LazyLock::new(|| Code::new(false));

/// Returns the code of signed states, or of states that are never negative.
pub(super) fn code(is_signed: bool) -> &'static Code {
    if is_signed { &SIGNED } else { &UNSIGNED }
}

/// Returns the number of blocks of a parameter or shard.
#[must_use]
pub fn blocks(elements: usize) -> usize {
    elements.div_ceil(BLOCK)
}

impl Code {
    /// Builds the dynamic tree code: 0, 1, and seven decades below 1, each with twice as many evenly spread
    /// fractions as the one below it.
    fn new(is_signed: bool) -> Self {
        let mut fractions = vec![0.0, 1.0];
        for decade in 0..7 {
            let count = 1 << (decade + i32::from(!is_signed));
            let top = 10f64.powi(decade - 6);
            for item in 0..count {
                let fraction = top * (0.1 + 0.9 * (f64::from(item) + 0.5) / f64::from(count));
                fractions.push(fraction as f32);
                if is_signed {
                    fractions.push(-fraction as f32);
                }
            }
        }
        fractions.sort_by(f32::total_cmp);
        let fractions: [f32; CODES] = std::array::from_fn(|code| fractions[code]);
        let borders = std::array::from_fn(|code| 0.5 * (fractions[code] + fractions[code + 1]));
        Code { fractions, borders, is_signed }
    }

    /// Returns the code whose fraction is nearest to `fraction`; of two equally near, the lower. In the
    /// unsigned code no positive fraction becomes 0, because an update divides by its root.
    fn nearest(&self, fraction: f32) -> u8 {
        let code = self.borders.partition_point(|border| *border < fraction);
        let least = usize::from(!self.is_signed && fraction > 0.0);
        code.max(least) as u8
    }

    /// Decodes consecutive blocks into `values`.
    pub(super) fn decode(&self, codes: &[u8], maxima: &[f32], values: &mut [f32]) {
        let blocks = codes.chunks(BLOCK).zip(values.chunks_mut(BLOCK)).zip(maxima);
        for ((codes, values), maximum) in blocks {
            for (value, code) in values.iter_mut().zip(codes) {
                *value = self.fractions[usize::from(*code)] * maximum;
            }
        }
    }

    /// Encodes consecutive blocks, writing their codes and largest magnitudes.
    pub(super) fn encode(&self, values: &[f32], codes: &mut [u8], maxima: &mut [f32]) {
        let blocks = values.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).zip(maxima);
        for ((values, codes), maximum) in blocks {
            *maximum = values.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
            for (code, value) in codes.iter_mut().zip(values) {
                *code = self.nearest(if *maximum > 0.0 { value / *maximum } else { 0.0 });
            }
        }
    }
}

/// Returns the fractions of the signed code, then of the unsigned one, as bits for `kernels/optimizer.cu`.
pub(super) fn words() -> [u32; MOST_STATES * CODES] {
    let codes = [&SIGNED.fractions, &UNSIGNED.fractions];
    std::array::from_fn(|word| codes[word / CODES][word % CODES].to_bits())
}
