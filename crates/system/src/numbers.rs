//! Formats numbers.

/// Formats a count with its digits in groups of three, as in `1,457,152`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats the progress of work in bytes, as in `1,200 of 96,000 MB`.
#[must_use]
pub fn megabytes_of(done: u64, all: u64) -> String {
    const MEGABYTE: u64 = 1_000_000;
    format!("{} of {} MB", grouped(done / MEGABYTE), grouped(all / MEGABYTE))
}

/// Formats bytes as hexadecimal digits, as in `00ff`.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{grouped, hexadecimal, megabytes_of};

    #[test]
    fn each_byte_has_two_hexadecimal_digits() {
        assert_eq!(hexadecimal(&[0, 1, 0xab, 255]), "0001abff");
    }

    #[test]
    fn progress_is_in_whole_megabytes() {
        assert_eq!(megabytes_of(999_999, 1_234_567_890), "0 of 1,234 MB");
    }

    #[test]
    fn digits_are_grouped_from_the_end() {
        let table =
            [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345, "12,345"), (123_456_789, "123,456,789")];
        for (number, text) in table {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }
}
