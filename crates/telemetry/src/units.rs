//! Numbers as people read them.

/// Bytes with a unit: two decimals in the largest binary unit that leaves at least 1.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10) as usize;
    format!("{:.2} {}", bytes as f64 / (1u64 << (10 * power)) as f64, UNITS[power - 1])
}

/// Reads bytes as people write them: a number, whole or with decimals, and a unit, decimal (`GB`) or binary (`GiB`), or none
/// for bytes. `None` of anything else, and of what is not below 2⁶³.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim());
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit)?,
        // Decimals are of a unit, and so few that nothing is lost.
        Err(_) if unit > 1 => (number.parse::<f64>().ok()? * unit as f64).round() as u64,
        Err(_) => return None,
    };
    (bytes < 1 << 63).then_some(bytes)
}

/// A whole number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds as milliseconds, to the microsecond.
pub fn milliseconds(microseconds: u64) -> String {
    format!("{}.{:03} ms", grouped(microseconds / 1000), microseconds % 1000)
}

/// Seconds as hours, minutes and seconds.
pub fn duration(seconds: f64) -> String {
    let whole =
        if seconds.is_finite() { seconds.max(0.0).round() as u64 } else { return "unknown".to_owned() };
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
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
            ("4096", Some(4096)),
            ("0.5", None),
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
        assert_eq!(milliseconds(1_234_056), "1,234.056 ms");
        assert_eq!(milliseconds(7), "0.007 ms");
        assert_eq!(duration(3_725.4), "1:02:05");
        assert_eq!(duration(f64::INFINITY), "unknown");
    }
}
