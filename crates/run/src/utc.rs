//! Times of day in UTC, by H. Hinnant's civil-from-days algorithm.

use std::time::{Duration, SystemTime};

/// Returns a time in UTC: year, month, day, hours, minutes and seconds.
fn civil(time: SystemTime) -> [i64; 6] {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let days = (since / 86_400) as i64;
    let seconds = (since % 86_400) as i64;
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    [year, month, day, seconds / 3600, seconds % 3600 / 60, seconds % 60]
}

/// Formats a time for use in file names, as `20261120-081500`.
pub(crate) fn compact(time: SystemTime) -> String {
    let [year, month, day, hours, minutes, seconds] = civil(time);
    format!("{year:04}{month:02}{day:02}-{hours:02}{minutes:02}{seconds:02}")
}

/// Formats a time as in RFC 3339: `2026-11-20T08:15:00Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let [year, month, day, hours, minutes, seconds] = civil(time);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_match_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(rfc3339(time), expected);
        }
        assert_eq!(compact(SystemTime::UNIX_EPOCH), "19700101-000000");
    }
}
