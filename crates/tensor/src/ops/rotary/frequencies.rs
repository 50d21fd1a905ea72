//! Frequencies of rotary embeddings, and the table of their cosines and sines.

use std::f64::consts::TAU;

/// Scaling of frequencies for contexts longer than the original training context.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// All frequencies are divided by `factor` (Chen and others, *Extending Context Window of Large Language
    /// Models via Positional Interpolation*, 2023).
    Linear {
        /// Divisor of all frequencies.
        factor: f64,
    },
    /// Llama 3.1's scaling. Frequencies with fewer than `low` turns in `context` tokens are divided by
    /// `factor`, frequencies with more than `high` turns stay, and the others are interpolated.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Number of turns below which a frequency is divided.
        low: f64,
        /// Number of turns above which a frequency is unchanged.
        high: f64,
        /// Tokens of the original context.
        context: usize,
    },
    /// YaRN (Peng and others, *YaRN: Efficient Context Window Extension of Large Language Models*, 2023).
    /// Frequencies with more than `fast` turns in `context` tokens stay, frequencies with fewer than `slow`
    /// turns are divided by `factor`, and the others are interpolated by the index of their pair.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Number of turns above which a frequency is unchanged.
        fast: f64,
        /// Number of turns below which a frequency is divided.
        slow: f64,
        /// Tokens of the original context.
        context: usize,
        /// Whether the indices between which frequencies are interpolated are rounded outwards to integers.
        truncates: bool,
        /// Factor of all cosines and sines.
        attention: f64,
    },
    /// LongRoPE (Ding and others, *LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens*, 2024):
    /// each frequency is divided by its own factor.
    LongRope {
        /// Divisor of each pair's frequency.
        factors: Vec<f64>,
        /// Factor of all cosines and sines.
        attention: f64,
    },
}

/// Frequencies of a head's angles: θ^(−2i/width) for pair i, scaled.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Elements of a head, an even number.
    pub width: usize,
    /// The base θ.
    pub theta: f64,
    /// Scaling for long contexts.
    pub scaling: Scaling,
}

impl Frequencies {
    /// Returns the radians per position of each of the width/2 pairs, in f32 as Hugging Face's models compute
    /// them.
    fn radians(&self) -> impl Iterator<Item = f32> {
        (0..self.width / 2).map(|pair| {
            let exponent = (2 * pair) as f32 / self.width as f32;
            let plain = 1.0 / libm::pow(self.theta, f64::from(exponent)) as f32;
            self.scale(pair, f64::from(plain)) as f32
        })
    }

    fn scale(&self, pair: usize, radians: f64) -> f64 {
        match &self.scaling {
            Scaling::None => radians,
            Scaling::Linear { factor } => radians / factor,
            Scaling::Llama3 { factor, low, high, context } => {
                let turns = *context as f64 * radians / TAU;
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - share) * radians / factor + share * radians
            }
            Scaling::Yarn { factor, fast, slow, context, truncates, .. } => {
                let [low, high] = self.interpolated([*fast, *slow], *context, *truncates);
                let share = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                share * radians / factor + (1.0 - share) * radians
            }
            Scaling::LongRope { factors, .. } => radians / factors.get(pair).copied().unwrap_or(1.0),
        }
    }

    /// Returns the indices of the pairs with `turns[0]` and `turns[1]` turns in `context` tokens, between
    /// which YaRN interpolates.
    fn interpolated(&self, turns: [f64; 2], context: usize, truncates: bool) -> [f64; 2] {
        let width = self.width as f64;
        let index =
            |turns: f64| width * libm::log(context as f64 / (turns * TAU)) / (2.0 * libm::log(self.theta));
        let [mut low, mut high] = turns.map(index);
        if truncates {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(width - 1.0));
        // Equal indices would divide by zero.
        if low == high { [low, high + 0.001] } else { [low, high] }
    }

    /// Returns the factor of all cosines and sines.
    fn attention(&self) -> f64 {
        match self.scaling {
            Scaling::None | Scaling::Linear { .. } | Scaling::Llama3 { .. } => 1.0,
            Scaling::Yarn { attention, .. } | Scaling::LongRope { attention, .. } => attention,
        }
    }

    /// Returns the table for positions `0..context`: rows of width/2 cosines, then width/2 sines.
    #[must_use]
    pub fn table(self, context: usize) -> Vec<f32> {
        let (radians, attention): (Vec<f32>, _) = (self.radians().collect(), self.attention());
        let mut table = Vec::with_capacity(context * self.width);
        for position in 0..context {
            let angles = || radians.iter().map(|radians| f64::from(position as f32 * radians));
            table.extend(angles().map(|angle| (attention * libm::cos(angle)) as f32));
            table.extend(angles().map(|angle| (attention * libm::sin(angle)) as f32));
        }
        table
    }
}
