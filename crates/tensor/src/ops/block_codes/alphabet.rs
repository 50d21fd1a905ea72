//! Sets of 4-bit and 8-bit codes, and the values that they stand for.

use std::sync::LazyLock;

use device::{E4m3, Fp8};

/// The 16 values of NF4, quantiles of a normal distribution, as in bitsandbytes.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// A set of codes. Each stands for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alphabet {
    /// Four bits: quantiles of a normal distribution, between -1 and 1.
    Nf4,
    /// Four bits: multiples of 1/7 from -1 to 1.
    Int4,
    /// Eight bits: E4M3, up to 448.
    E4m3,
}

/// The values of 16 codes in increasing order, and the midpoints between neighbours.
pub(super) struct Sixteen {
    pub(super) values: [f32; 16],
    borders: [f32; 15],
}

impl Sixteen {
    fn new(values: [f32; 16]) -> Self {
        Sixteen { values, borders: std::array::from_fn(|code| (values[code] + values[code + 1]) / 2.0) }
    }

    /// Returns the code whose value is nearest to `value`; of two equally near, the lower.
    #[inline(always)]
    fn nearest(&self, value: f32) -> u8 {
        self.borders.iter().map(|border| u8::from(*border < value)).sum()
    }
}

static OF_NF4: LazyLock<Sixteen> = LazyLock::new(|| Sixteen::new(NF4));
static OF_INT4: LazyLock<Sixteen> =
    LazyLock::new(|| Sixteen::new(std::array::from_fn(|code| (code as f32 - 8.0) / 7.0)));

impl Alphabet {
    /// Returns the bits of a code.
    #[must_use]
    pub const fn bits(self) -> usize {
        match self {
            Alphabet::Nf4 | Alphabet::Int4 => 4,
            Alphabet::E4m3 => 8,
        }
    }

    /// Returns the value to which a block's largest magnitude is scaled.
    pub(super) const fn largest(self) -> f32 {
        match self {
            Alphabet::Nf4 | Alphabet::Int4 => 1.0,
            Alphabet::E4m3 => E4m3::LARGEST,
        }
    }

    /// Returns the values of 4-bit codes; `None` for codes of 8 bits.
    pub(super) fn sixteen(self) -> Option<&'static Sixteen> {
        match self {
            Alphabet::Nf4 => Some(&OF_NF4),
            Alphabet::Int4 => Some(&OF_INT4),
            Alphabet::E4m3 => None,
        }
    }

    /// Writes the codes of a block's values, each multiplied by `inverse`. The first of the two codes in a
    /// byte has the high bits.
    pub(super) fn encode(self, values: &[f32], inverse: f32, codes: &mut [u8]) {
        let largest = self.largest();
        let quotient = |value: f32| (value * inverse).clamp(-largest, largest);
        match self.sixteen() {
            Some(sixteen) => {
                let (pairs, _) = values.as_chunks::<2>();
                for (code, [first, second]) in codes.iter_mut().zip(pairs) {
                    *code = sixteen.nearest(quotient(*first)) << 4 | sixteen.nearest(quotient(*second));
                }
            }
            None => {
                for (code, value) in codes.iter_mut().zip(values) {
                    *code = E4m3::from_f32(quotient(*value)).to_bits();
                }
            }
        }
    }

    /// Reads the codes of a block as values times `scale`.
    pub(super) fn decode(self, codes: &[u8], scale: f32, values: &mut [f32]) {
        match self.sixteen() {
            Some(Sixteen { values: table, .. }) => {
                let (pairs, _) = values.as_chunks_mut::<2>();
                for (pair, code) in pairs.iter_mut().zip(codes) {
                    *pair = [code >> 4, code & 15].map(|code| table[usize::from(code)] * scale);
                }
            }
            None => {
                for (value, code) in values.iter_mut().zip(codes) {
                    *value = E4m3::from_bits(*code).to_f32() * scale;
                }
            }
        }
    }
}
