//! Synthetic images: each class has its own wave pattern, and each image adds noise.

use philox::{key_of_name, philox4x32};
use rayon::prelude::*;

use crate::{MicroBatch, Normalisation};

/// Number of levels of a pixel's channel.
const LEVELS: usize = 256;
/// Maximum number of wave periods across an image, in each direction.
const MOST_PERIODS: u32 = 4;
/// Bit mask of the noise in a value; also the largest value of the wave.
const NOISE: u8 = 0x7f;

/// Generates the synthetic images of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    /// Random key of the stream: training or validation.
    pub(crate) key: [u32; 2],
    pub(crate) channels: usize,
    /// Height and width in pixels.
    pub(crate) size: usize,
    pub(crate) classes: u64,
}

impl Pattern {
    pub(crate) fn class(&self, number: u64) -> u32 {
        let [word, ..] = philox4x32(self.key, [u32::MAX, u32::MAX, number as u32, (number >> 32) as u32]);
        // The high word of the product scales 32 random bits to the number of classes.
        ((u64::from(word) * self.classes) >> 32) as u32
    }

    /// Fills `pixels`, size × size × channels, with image `number`. Half of the value range is the wave of
    /// its class, half is noise.
    pub(crate) fn draw(&self, number: u64, pixels: &mut [u8]) {
        let number_words = [number as u32, (number >> 32) as u32];
        for (block, values) in (0_u32..).zip(pixels.chunks_mut(16)) {
            let words = philox4x32(self.key, [block, 0, number_words[0], number_words[1]]);
            for (value, noise) in values.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())) {
                *value = noise & NOISE;
            }
        }
        let wave = Wave::new(self.class(number), self.size);
        let rows = pixels.chunks_exact_mut(self.size * self.channels);
        for (y, row) in rows.enumerate() {
            for (x, pixel) in row.chunks_exact_mut(self.channels).enumerate() {
                for (channel, value) in pixel.iter_mut().enumerate() {
                    *value += wave.at(x, y, channel);
                }
            }
        }
    }
}

/// The wave of a class, the same in every stream and run.
struct Wave {
    /// One period of the sine, as levels.
    sine: [u8; LEVELS],
    /// Phase advance per pixel along a row and along a column, in steps of the period modulo [`LEVELS`].
    across: usize,
    down: usize,
    /// Phase offset of each channel; channel indices are taken modulo four.
    phases: [u8; 4],
}

impl Wave {
    fn new(class: u32, size: usize) -> Self {
        let key = key_of_name(0, "data.synthetic.classes");
        let [x, y, phases, _] = philox4x32(key, [class, 0, 0, 0]);
        let period = |word: u32| (word % (MOST_PERIODS + 1)) as usize * LEVELS / size;
        let level = |at: usize| {
            let angle = std::f64::consts::TAU * at as f64 / LEVELS as f64;
            ((libm::sin(angle) + 1.0) * f64::from(NOISE) / 2.0) as u8
        };
        Self {
            sine: std::array::from_fn(level),
            across: period(x),
            down: period(y),
            phases: phases.to_le_bytes(),
        }
    }

    fn at(&self, x: usize, y: usize, channel: usize) -> u8 {
        let phase = usize::from(self.phases[channel % 4]);
        self.sine[(self.across * x + self.down * y + phase) % LEVELS]
    }
}

/// Returns the normalisation (level − 127) / 64, which is exact in f32.
pub(crate) fn normalisation() -> Normalisation {
    Normalisation { mean: vec![f64::from(NOISE) / 255.0], deviation: vec![64.0 / 255.0] }
}

/// Fills `out` with micro-batch `number`, whose first image has the number `number` · `rows`, on all cores.
pub(crate) fn fill_pattern(pattern: Pattern, number: u64, rows: usize, out: &mut MicroBatch) {
    let Pattern { channels, size, .. } = pattern;
    let first = number.wrapping_mul(rows as u64);
    let image = size * size * channels;
    let inputs = out.inputs.reset_u8(&[rows, size, size, channels]).par_chunks_exact_mut(image);
    inputs.enumerate().for_each(|(index, input)| pattern.draw(first.wrapping_add(index as u64), input));
    for (target, index) in out.targets.reset_u32(&[rows]).iter_mut().zip(0..) {
        *target = pattern.class(first.wrapping_add(index));
    }
}
