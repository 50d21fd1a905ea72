//! The allocator's settings, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.

use crate::size::DEFAULT_LARGE_SEGMENT;

mod parse;

pub use parse::SettingsError;

/// The environment variables that hold settings; the first that is present decides alone.
pub const ENVIRONMENT: [&str; 3] = ["PLIMSOLL_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// Rounding, splitting, caching and returning of the allocator.
///
/// ```
/// let settings = memory::Settings::parse("max_split_size_mb:64, roundup_power2_divisions:[256:1,>:4]")?;
/// assert_eq!(settings.max_split_size, 64 << 20);
/// assert!(memory::Settings::parse("max_split_size_mb:1").is_err());
/// # Ok::<(), memory::SettingsError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `large_segment_size_mb`, in bytes: what is taken from the driver for blocks between 1 and 10 MiB, and
    /// the page size of expandable segments in the large pool.
    pub large_segment_size: u64,
    /// `max_split_size_mb`, in bytes: blocks from this size on are not split; `u64::MAX` for no such limit.
    pub max_split_size: u64,
    /// `max_non_split_rounding_mb`, in bytes: how much larger than asked for a block that is not split may
    /// be.
    pub max_non_split_rounding: u64,
    /// The share of the memory limit above which idle segments are released by age; 0 for never.
    pub garbage_collection_threshold: f64,
    /// Steps between two powers of two that requests are rounded to, by size class: slot k governs 2ᵏ to 2ᵏ⁺¹
    /// MiB. 0 and 1 mean no such rounding.
    pub roundup_power2_divisions: [u64; 16],
    /// Segments are virtual ranges that grow by pages.
    pub expandable_segments: bool,
    /// The share of the device that may be held; read when an allocator is made.
    pub per_process_memory_fraction: f64,
    text: String,
    warnings: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            large_segment_size: DEFAULT_LARGE_SEGMENT,
            max_split_size: u64::MAX,
            max_non_split_rounding: DEFAULT_LARGE_SEGMENT,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: [0; 16],
            expandable_segments: false,
            per_process_memory_fraction: 1.0,
            text: String::new(),
            warnings: Vec::new(),
        }
    }
}

impl Settings {
    /// The text that was parsed last, empty for defaults.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A sentence for each key that was accepted and does nothing here.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The table of divisions, if any of it is on.
    pub(crate) fn divisions(&self) -> Option<&[u64; 16]> {
        let table = &self.roundup_power2_divisions;
        table.iter().any(|d| *d > 1).then_some(table)
    }
}
