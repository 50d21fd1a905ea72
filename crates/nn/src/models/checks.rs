//! Checks of sizes shared by the families of language models.

use device::DType;
use keys::RawValues;
use tensor::ops::attention;

/// Maximum bytes of one group of tensors. Far more than any machine has, and small enough that sums of a few
/// groups, rounded up by the allocator, cannot overflow 2⁶⁴.
const MOST_BYTES: u128 = 1 << 56;
const BYTES_OF_F32: u128 = 4;

/// Width of attention heads, with the keys that an error about it names.
pub(super) struct HeadWidth {
    /// Number of values per head.
    pub(super) value: usize,
    /// Clause of an error message that states the width with the keys that determine it.
    pub(super) from: String,
    /// Keys that determine the width.
    pub(super) keys: &'static [&'static str],
}

impl HeadWidth {
    /// Returns an error if attention does not support the width in the half-precision dtype `compute`.
    pub(super) fn check(self, raw: &RawValues, compute: DType) -> keys::Result<()> {
        let widths = attention::widths(compute);
        if compute == DType::F32 || widths.has(self.value) {
            return Ok(());
        }
        let reason = format!(
            "precision.compute = \"{compute}\" has attention for heads of {widths} values, and {}",
            self.from
        );
        Err(raw.conflict(&[&["precision.compute"], self.keys].concat(), reason))
    }
}

/// Granularity of the search for the largest context, if the configured one is a multiple of it; otherwise 1.
const CONTEXT_STEP: usize = 64;

/// Returns the granularity of the search for the largest context.
pub(super) fn context_step(context: usize) -> usize {
    if context.is_multiple_of(CONTEXT_STEP) { CONTEXT_STEP } else { 1 }
}

/// A group of tensors: its name, a factor, and keys. The number of elements is the factor times the keys'
/// values.
pub type Group<'a> = (&'a str, usize, &'a [(&'static str, usize)]);

/// Rejects sizes whose number of bytes overflows. This is no estimate of memory.
///
/// # Errors
/// A group has more than 2⁵⁶ bytes; the error lists its keys.
pub fn check_bytes(raw: &RawValues, groups: &[Group<'_>]) -> keys::Result<()> {
    for (what, factor, settings) in groups {
        let start = BYTES_OF_F32.saturating_mul(*factor as u128);
        let bytes = settings.iter().fold(start, |bytes, (_, value)| bytes.saturating_mul(*value as u128));
        if bytes > MOST_BYTES {
            let values: Vec<_> = settings.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            let reason = format!("{}: {what} would have more than {MOST_BYTES} bytes", values.join(", "));
            let paths: Vec<_> = settings.iter().map(|(key, _)| *key).collect();
            return Err(raw.conflict(&paths, reason));
        }
    }
    Ok(())
}

/// Refuses a base width of heads without a base width of the model. The other arguments are the two keys and
/// their values: first the model's base width, then the heads'.
pub(super) fn check_base(
    raw: &RawValues,
    keys: [&'static str; 2],
    [base, base_head]: [usize; 2],
) -> keys::Result<()> {
    if base > 0 || base_head == 0 {
        return Ok(());
    }
    let [base_key, head_key] = keys;
    let reason = format!("{head_key} = {base_head} is of the model of {base_key}, and that is 0");
    Err(raw.conflict(&[head_key, base_key], reason))
}
