//! Numbers as text: bytes, counts, durations, percentages.

use std::time::Duration;

use indicatif::{BinaryBytes, FormattedDuration};
pub use system::numbers::grouped;

/// Formats bytes with two decimals in the largest binary unit not above the value, as in `1.39 MiB`.
pub fn bytes(bytes: u64) -> String {
    BinaryBytes(bytes).to_string()
}

/// Formats a count with its noun, as in `1 step`, `1,200 steps` and `2 micro-batches`.
pub fn counted(number: u64, noun: &str) -> String {
    let ending = match (number, noun.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {noun}{ending}", grouped(number))
}

/// Formats microseconds as milliseconds with three decimals, as in `1,234.056 ms`.
pub fn milliseconds(microseconds: u64) -> String {
    format!("{}.{:03} ms", grouped(microseconds / 1000), microseconds % 1000)
}

/// Formats seconds as hours, minutes and seconds, as in `01:02:05`; `unknown` if not a valid duration.
pub fn duration(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds.round()) {
        Ok(duration) => FormattedDuration(duration).to_string(),
        Err(_) => "unknown".to_owned(),
    }
}

/// Formats a fraction as a percentage with one decimal, as in `12.5 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats ascending numbers, joining consecutive ones, as in `0-3,8`.
pub fn ranges(numbers: impl Iterator<Item = usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// Formats bytes for the ticks of an axis: at most two decimals, without trailing zeros, as in `1.5 GiB`.
pub(crate) fn axis_bytes(number: u64) -> String {
    let text = bytes(number);
    match text.split_once(' ') {
        Some((value, unit)) if value.contains('.') => format!("{} {unit}", without_zeros(value)),
        _ => text,
    }
}

/// Formats a number with at most `digits` significant digits, as in `0.0005`, `3.446` or `2e-5`; `–` if not
/// finite.
pub(crate) fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return "–".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if magnitude < -4 {
        let text = format!("{value:.*e}", (digits - 1).max(0) as usize);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", without_zeros(mantissa));
    }
    let text = format!("{value:.*}", (digits - 1 - magnitude).max(0) as usize);
    let text = without_zeros(&text);
    match text.parse::<u64>() {
        Ok(whole) if magnitude >= 4 => grouped(whole),
        _ => text.to_owned(),
    }
}

/// Removes the zeros at the end of a decimal fraction.
fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Parses a size such as `4096`, `64KiB`, `1.5 GiB` (binary) or `141GB` (decimal). Returns `None` for other
/// texts and for sizes of 2⁶³ bytes or more.
pub fn parse_bytes(text: &str) -> Option<u64> {
    parse_size::parse_size(text.trim()).ok().filter(|bytes| *bytes < 1 << 63)
}

/// Draws values as a line of block characters. The values are averaged over at most `columns` equal
/// intervals; heights span `least` to `most`.
pub fn sparkline(values: &[f64], (least, most): (f64, f64), columns: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let span = (most - least).max(f64::MIN_POSITIVE);
    let block = |stretch: &[f64]| {
        let mean = stretch.iter().sum::<f64>() / stretch.len() as f64;
        // A float becomes the nearest integer of its range.
        BLOCKS[((mean - least) / span * BLOCKS.len() as f64).clamp(0.0, 7.0) as usize]
    };
    let columns = columns.clamp(1, values.len().max(1));
    let edge = |column: usize| column * values.len() / columns;
    (0..columns)
        .map(|column| &values[edge(column)..edge(column + 1)])
        .filter(|s| !s.is_empty())
        .map(block)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_text_forms() {
        for (number, with_unit, in_groups) in [
            (0, "0 B", "0"),
            (1023, "1023 B", "1,023"),
            (1024, "1.00 KiB", "1,024"),
            (1_457_152, "1.39 MiB", "1,457,152"),
            (85_899_345_920, "80.00 GiB", "85,899,345,920"),
            (u64::MAX, "16.00 EiB", "18,446,744,073,709,551,615"),
        ] {
            assert_eq!((bytes(number).as_str(), grouped(number).as_str()), (with_unit, in_groups));
        }
        for (text, bytes) in [
            ("80GiB", Some(80 << 30)),
            ("141 GB", Some(141_000_000_000)),
            (" 1.5gib ", Some(3 << 29)),
            ("0.7 MiB", Some(734_003)),
            ("4096", Some(4096)),
            ("1.2.3GiB", None),
            ("GiB", None),
            ("80 gigs", None),
            ("-1", None),
            ("", None),
            ("99999999TiB", None),
            ("9999999.9TiB", None),
        ] {
            assert_eq!(parse_bytes(text), bytes, "{text:?}");
        }
        for (value, digits, text) in [
            (0.0, 3, "0"),
            (3.44612, 4, "3.446"),
            (20.0, 3, "20"),
            (123_456.0, 7, "123,456"),
            (12_345.6, 6, "12345.6"),
            (2000.0, 3, "2000"),
            (0.0005, 3, "0.0005"),
            (0.00001, 3, "1e-5"),
            (-2.5, 3, "-2.5"),
            (f64::NAN, 3, "–"),
        ] {
            assert_eq!(significant(value, digits), text);
        }
        let ticks = [(0, "0 B"), (1 << 20, "1 MiB"), (3 << 29, "1.5 GiB"), (1100, "1.07 KiB")];
        assert!(ticks.iter().all(|(bytes, text)| axis_bytes(*bytes) == *text));
        for (number, noun, text) in
            [(1, "step", "1 step"), (0, "block", "0 blocks"), (1200, "micro-batch", "1,200 micro-batches")]
        {
            assert_eq!(counted(number, noun), text);
        }
        assert_eq!(percent(0.9876), "98.8 %");
        assert_eq!(milliseconds(1_234_056), "1,234.056 ms");
        assert_eq!(milliseconds(7), "0.007 ms");
        assert_eq!(duration(3_725.4), "01:02:05");
        assert_eq!(duration(f64::NAN), "unknown");
        assert_eq!(duration(-1.0), "unknown");
        assert_eq!(duration(f64::INFINITY), "unknown");
    }
}
