//! Numbers in environment variables.

use std::ops::RangeInclusive;

/// Returns the value of the environment variable `name`, with invalid UTF-8 replaced.
#[must_use]
pub fn text(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Parses the value of the variable `name` as a number.
///
/// # Errors
/// The value is not a number in `range`; the error is a sentence.
pub fn number(name: &str, value: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let least = range.start();
    let most = range.end();
    match value.trim().parse::<u64>() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ if value.trim().is_empty() => {
            Err(format!("{name} is empty: set it to a number from {least} to {most}, or do not set it"))
        }
        _ => Err(format!("{name}={value} is not a number from {least} to {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn values_that_are_no_numbers_are_refused_by_name() {
        for value in ["5s", "5.5", "-1", "0x5", "five", "1e3", "4", "11", "18446744073709551616", "५"] {
            let expected = format!("N={value} is not a number from 5 to 10");
            assert_eq!(number("N", value, 5..=10), Err(expected));
        }
        for value in ["", " "] {
            let expected = "N is empty: set it to a number from 5 to 10, or do not set it";
            assert_eq!(number("N", value, 5..=10), Err(expected.to_owned()));
        }
        assert_eq!(["5", " 10\n", "007"].map(|value| number("N", value, 5..=10)), [Ok(5), Ok(10), Ok(7)]);
    }
}
