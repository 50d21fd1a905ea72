//! The 8-bit code of scales: bitsandbytes' signed dynamic map. `kernels/block_codes.cu` computes the same
//! values.

use std::sync::LazyLock;

const CODES: usize = 256;
/// The code of 0.
const ZERO: usize = 127;
/// Upper ends of the decades. Each decade has twice as many fractions as the one below.
const DECADES: [f32; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// The fractions in increasing order, and the midpoints between neighbours.
pub(super) struct ScaleCode {
    pub(super) fractions: [f32; CODES],
    borders: [f32; CODES - 1],
}

static SCALE_CODE: LazyLock<ScaleCode> = LazyLock::new(|| {
    let fractions: [f32; CODES] = std::array::from_fn(fraction);
    let borders = std::array::from_fn(|code| (fractions[code] + fractions[code + 1]) / 2.0);
    ScaleCode { fractions, borders }
});

pub(super) fn scale_code() -> &'static ScaleCode {
    &SCALE_CODE
}

/// Returns the fraction of a code. In order of codes: 127 negative fractions, 0, 127 positive fractions, 1.
fn fraction(code: usize) -> f32 {
    let magnitude = code.abs_diff(ZERO);
    match code {
        ZERO => 0.0,
        255 => 1.0,
        _ if code < ZERO => -positive(magnitude),
        _ => positive(magnitude),
    }
}

/// Returns positive fraction number `magnitude`, from 1 on: a midpoint between neighbours of
/// `torch.linspace(0.1, 1, parts + 1)`, times the decade.
fn positive(magnitude: usize) -> f32 {
    let decade = magnitude.ilog2();
    let parts = 1usize << decade;
    let part = magnitude - (1 << decade);
    let step = (1.0 - 0.1) / parts as f32;
    let border = |index: usize| match index < parts.div_ceil(2) {
        true => step.mul_add(index as f32, 0.1),
        false => (-step).mul_add((parts - index) as f32, 1.0),
    };
    DECADES[decade as usize] * ((border(part) + border(part + 1)) / 2.0)
}

impl ScaleCode {
    /// Returns the code whose fraction is nearest to `fraction`; of two equally near, the lower.
    pub(super) fn nearest(&self, fraction: f32) -> u8 {
        self.borders.partition_point(|border| *border < fraction) as u8
    }
}
