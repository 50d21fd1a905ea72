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
        assert_eq!(milliseconds(1_234_056), "1,234.056 ms");
        assert_eq!(milliseconds(7), "0.007 ms");
        assert_eq!(duration(3_725.4), "1:02:05");
        assert_eq!(duration(f64::INFINITY), "unknown");
    }
}
