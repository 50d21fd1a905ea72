//! The allocator's settings, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.

use crate::size::DEFAULT_LARGE_SEGMENT;

mod parse;

pub use parse::SettingsError;

/// Environment variables with settings, in order of precedence. Only the first that is set is read.
pub const ENVIRONMENT: [&str; 3] = ["PLIMSOLL_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// Settings of rounding, splitting, caching and releasing.
///
/// ```
/// let settings = memory::Settings::parse("max_split_size_mb:64, roundup_power2_divisions:[256:1,>:4]")?;
/// assert_eq!(settings.max_split_size, 64 << 20);
/// assert!(memory::Settings::parse("max_split_size_mb:1").is_err());
/// # Ok::<(), memory::SettingsError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `large_segment_size_mb`, in bytes: the segment size for blocks between 1 and 10 MiB, and the page size
    /// of expandable segments in the large pool.
    pub large_segment_size: u64,
    /// `max_split_size_mb`, in bytes: blocks of at least this size are not split; `u64::MAX`: no limit.
    pub max_split_size: u64,
    /// `max_non_split_rounding_mb`, in bytes: maximum bytes of an unsplit block beyond the request.
    pub max_non_split_rounding: u64,
    /// Fraction of the memory limit above which idle segments are released by age; 0 disables it.
    pub garbage_collection_threshold: f64,
    /// Number of steps between two powers of two to which requests are rounded. Entry k is for 2ᵏ to 2ᵏ⁺¹
    /// MiB; 0 and 1 disable rounding.
    pub roundup_power2_divisions: [u64; 16],
    /// Whether segments are virtual ranges that grow by pages.
    pub expandable_segments: bool,
    /// Fraction of the device that the allocator may hold, read when an allocator is created.
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
    /// Returns the text that was parsed last; empty for the defaults.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns a sentence for each key that is accepted but has no effect.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the table of divisions, if any entry is set.
    pub(crate) fn divisions(&self) -> Option<&[u64; 16]> {
        let table = &self.roundup_power2_divisions;
        table.iter().any(|d| *d > 1).then_some(table)
    }
}
