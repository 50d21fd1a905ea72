//! Frequencies of rotary embeddings, and the table of their cosines and sines.

use std::f64::consts::TAU;

/// Scaling of frequencies for contexts longer than the model was first trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// All frequencies are divided by `factor` (Chen and others, *Extending Context Window of Large Language
    /// Models via Positional Interpolation*, 2023).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// As in Llama 3.1: frequencies with fewer than `low` turns in `context` tokens are divided by `factor`,
    /// those with more than `high` stay, and those between are interpolated.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Turns below which a frequency is divided.
        low: f64,
        /// Turns above which a frequency is unchanged.
        high: f64,
        /// Tokens of the original context.
        context: usize,
    },
}

/// Frequencies of the angles of a head: θ^(−2i/width) for pair i, scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frequencies {
    /// Elements of a head, an even number.
    pub width: usize,
    /// θ, the base.
    pub theta: f64,
    /// Scaling for long contexts.
    pub scaling: Scaling,
}

impl Frequencies {
    /// Radians per position of each of the width/2 pairs, in f32 as Hugging Face's models compute them.
    fn radians(self) -> impl Iterator<Item = f32> {
        (0..self.width / 2).map(move |pair| {
            let exponent = (2 * pair) as f32 / self.width as f32;
            let plain = 1.0 / libm::pow(self.theta, f64::from(exponent)) as f32;
            self.scale(f64::from(plain)) as f32
        })
    }

    fn scale(self, radians: f64) -> f64 {
        match self.scaling {
            Scaling::None => radians,
            Scaling::Linear { factor } => radians / factor,
            Scaling::Llama3 { factor, low, high, context } => {
                let turns = context as f64 * radians / TAU;
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - share) * radians / factor + share * radians
            }
        }
    }

    /// Rows for positions 0 to `context`: width/2 cosines, then as many sines.
    #[must_use]
    pub fn table(self, context: usize) -> Vec<f32> {
        let radians: Vec<f32> = self.radians().collect();
        let mut table = Vec::with_capacity(context * self.width);
        for position in 0..context {
            let angles = || radians.iter().map(|radians| f64::from(position as f32 * radians));
            table.extend(angles().map(|angle| libm::cos(angle) as f32));
            table.extend(angles().map(|angle| libm::sin(angle) as f32));
        }
        table
    }
}
