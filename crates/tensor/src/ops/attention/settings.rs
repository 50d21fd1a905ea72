//! Settings of attention: heads, scale, cap and window.

use super::heads::Heads;

/// Settings of attention. `Heads` converts to settings with the default scale, no cap and no window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Numbers and widths of the heads.
    pub heads: Heads,
    /// Factor of the scores; `None`: 1/√width.
    pub scale: Option<f32>,
    /// Cap c of the scaled scores: x becomes c·tanh(x/c). `None`: no cap.
    pub soft_cap: Option<f32>,
    /// Number of keys that a query sees, its own position included; `None`: all keys up to its position.
    pub window: Option<usize>,
}

impl From<Heads> for Settings {
    fn from(heads: Heads) -> Self {
        Settings { heads, scale: None, soft_cap: None, window: None }
    }
}

impl Settings {
    /// Returns the factor of the scores.
    pub fn factor(&self) -> f32 {
        self.scale.unwrap_or_else(|| 1.0 / (self.heads.width as f32).sqrt())
    }

    /// Returns the position of the first key in the window of `position`.
    #[inline(always)]
    pub(in crate::ops) fn window_start(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}
