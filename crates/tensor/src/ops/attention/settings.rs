//! How scores of attention are computed, besides their operands.

use super::heads::Heads;

/// Heads of attention, and the computation of their scores. Heads alone have the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The heads.
    pub heads: Heads,
    /// Factor of the scores; `None`: 1/√width.
    pub scale: Option<f32>,
    /// Scores are capped by c·tanh(x/c) with this c, after the factor; `None`: they are not.
    pub soft_cap: Option<f32>,
    /// Keys that a query sees, its own position included; `None`: all up to that.
    pub window: Option<usize>,
}

impl From<Heads> for Settings {
    fn from(heads: Heads) -> Self {
        Settings { heads, scale: None, soft_cap: None, window: None }
    }
}

impl Settings {
    /// Factor of the scores.
    pub fn factor(&self) -> f32 {
        self.scale.unwrap_or_else(|| 1.0 / (self.heads.width as f32).sqrt())
    }

    /// The first key of `position`'s window.
    #[inline(always)]
    pub(in crate::ops) fn window_start(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}
