//! What drawings have in common: safe text, and axes of bytes.

/// Text that is safe in HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Bytes for an axis: as few digits as tell ticks apart.
pub(crate) fn axis_bytes(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.2}");
    format!("{} {}", text.trim_end_matches('0').trim_end_matches('.'), units[unit])
}

/// Round byte counts from 0 to `most`: four to eight of them.
pub(crate) fn ticks(most: u64) -> Vec<u64> {
    let mut step = (most / 8).max(1).next_power_of_two();
    if most / step < 4 {
        step = (step / 2).max(1);
    }
    (0..=most / step).map(|n| n * step).collect()
}
