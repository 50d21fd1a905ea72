//! Helpers shared by all drawings.

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns four to eight round numbers of bytes from 0 to `most`.
pub(crate) fn byte_ticks(most: u64) -> Vec<u64> {
    let mut step = (most / 8).max(1).next_power_of_two();
    if most / step < 4 {
        step = (step / 2).max(1);
    }
    (0..=most / step).map(|n| n * step).collect()
}
