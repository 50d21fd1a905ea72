//! Frequencies of rotary embeddings, and the table of their cosines and sines.

use std::f64::consts::TAU;

/// Scaling of frequencies for contexts longer than the model was first trained on.
#[derive(Clone, Debug, PartialEq)]
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
    /// YaRN (Peng and others, *YaRN: Efficient Context Window Extension of Large Language Models*, 2023):
    /// frequencies of pairs below the one with `fast` turns in `context` tokens stay, those above the one
    /// with `slow` turns are divided by `factor`, and those between are interpolated by their index.
    Yarn {
        /// The divisor.
        factor: f64,
        /// Turns above which a frequency is unchanged.
        fast: f64,
        /// Turns below which a frequency is divided.
        slow: f64,
        /// Tokens of the original context.
        context: usize,
        /// Whether the two pairs are rounded outwards to whole indices.
        truncates: bool,
        /// Factor of cosines and sines.
        attention: f64,
    },
    /// LongRoPE (Ding and others, *LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens*, 2024):
    /// each frequency is divided by its own factor.
    LongRope {
        /// The divisor of each pair.
        factors: Vec<f64>,
        /// Factor of cosines and sines.
        attention: f64,
    },
}

/// Frequencies of the angles of a head: θ^(−2i/width) for pair i, scaled.
#[derive(Clone, Debug, PartialEq)]
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

    /// Indices of the pairs with `turns` in `context` tokens, between which YaRN interpolates.
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

    /// Factor of cosines and sines.
    fn attention(&self) -> f64 {
        match self.scaling {
            Scaling::None | Scaling::Linear { .. } | Scaling::Llama3 { .. } => 1.0,
            Scaling::Yarn { attention, .. } | Scaling::LongRope { attention, .. } => attention,
        }
    }

    /// Rows for positions 0 to `context`: width/2 cosines, then as many sines.
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
