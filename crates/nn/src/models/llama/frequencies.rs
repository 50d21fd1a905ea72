//! Rotary frequencies of the layers.

use tensor::ops::rotary::{Frequencies, Scaling};

use super::sizes::{LlamaSizes, RopeScaling, some};

impl LlamaSizes {
    /// Returns whether layers with a window use other frequencies than layers without.
    pub(super) fn windows_differ(&self) -> bool {
        self.frequencies(false) != self.frequencies(true) || self.pairs(false) != self.pairs(true)
    }

    /// Returns the rotary frequencies of layers without a window, or with one.
    pub(super) fn frequencies(&self, is_windowed: bool) -> Frequencies {
        let scaling = match is_windowed && !self.window_rope_scaled {
            true => Scaling::None,
            false => self.scaling(),
        };
        let theta = if is_windowed { self.window_rope_theta } else { self.rope_theta };
        Frequencies { width: self.rotated_in(is_windowed), theta, scaling }
    }

    fn scaling(&self) -> Scaling {
        let factor = self.rope_factor;
        let context = self.rope_original_context;
        let low = self.rope_low_turns;
        let high = self.rope_high_turns;
        match self.rope_scaling {
            RopeScaling::None => Scaling::None,
            RopeScaling::Linear => Scaling::Linear { factor },
            RopeScaling::Llama3 => Scaling::Llama3 { factor, low, high, context },
            RopeScaling::Yarn => Scaling::Yarn {
                factor,
                fast: high,
                slow: low,
                context,
                truncates: self.rope_rounded,
                attention: self.attention_factor(0.1 * libm::log(factor) + 1.0),
            },
            RopeScaling::LongRope => {
                let factors = match self.context > context {
                    true => &self.rope_long_factors,
                    false => &self.rope_short_factors,
                };
                let pairs = self.rotated() / 2;
                let factors = match factors[..] {
                    [one] => vec![one; pairs],
                    _ => factors.clone(),
                };
                let recommended = (1.0 + libm::log(factor) / libm::log(context as f64)).sqrt();
                Scaling::LongRope { factors, attention: self.attention_factor(recommended) }
            }
        }
    }

    /// Returns the configured factor of queries and keys; by default `recommended` for an extended context,
    /// otherwise 1.
    fn attention_factor(&self, recommended: f64) -> f64 {
        match some(self.rope_attention_factor) {
            Some(_) => self.rope_attention_factor,
            None if self.rope_factor > 1.0 => recommended,
            None => 1.0,
        }
    }
}
