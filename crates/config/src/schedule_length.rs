//! Lengths of warm-up and decay: steps, tokens, or a part of the run.

use keys::{Reading, Takes, Value};

/// Length of a part of a learning-rate schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ScheduleLength {
    /// No length; another key has it.
    #[default]
    Unset,
    /// Number of steps.
    Steps(u64),
    /// Percentage of the run's steps.
    Percent(f64),
    /// Number of positions of the sequences, padding included.
    Tokens(u64),
}

/// Suffixes of numbers of tokens, with their factors.
const FACTORS: [(&str, f64); 4] = [("k", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)];
/// Maximum number of tokens, up to which f64 has all integers.
const MOST_TOKENS: f64 = 9_007_199_254_740_992.0;

impl ScheduleLength {
    /// Values of a key with this type.
    pub(crate) const TAKES: Takes = Takes::Described(
        "a number of steps, a part of the run such as \"2%\", or tokens such as \"100M tokens\"",
    );

    /// Returns whether the key was left empty.
    #[must_use]
    pub fn is_unset(self) -> bool {
        self == ScheduleLength::Unset
    }

    /// Returns the length in steps, rounded up, of a schedule of `steps` steps of `tokens` tokens each.
    #[must_use]
    pub fn steps(self, steps: u64, tokens: u64) -> Option<u64> {
        match self {
            ScheduleLength::Unset => None,
            ScheduleLength::Steps(count) => Some(count),
            ScheduleLength::Percent(percent) => Some((percent * steps as f64 / 100.0).ceil() as u64),
            ScheduleLength::Tokens(count) => Some(count.div_ceil(tokens.max(1))),
        }
    }

    pub(crate) fn read(value: &Value, _: &Takes) -> Reading<Self> {
        match value {
            Value::Integer(count) => {
                let count = u64::try_from(*count).ok().filter(|count| i64::try_from(*count).is_ok());
                Reading::within(count.map(ScheduleLength::Steps))
            }
            Value::Text(text) => Reading::within(Self::parse(text.trim())),
            _ => Reading::WrongType,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(ScheduleLength::Unset);
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
            return Some(ScheduleLength::Percent(percent));
        }
        if let Some(count) = text.strip_suffix("steps") {
            return count.trim().parse().ok().map(ScheduleLength::Steps);
        }
        let count = text.strip_suffix("tokens")?.trim();
        let factor = |(suffix, factor): (&str, f64)| Some((count.strip_suffix(suffix)?, factor));
        let (number, factor) = FACTORS.into_iter().find_map(factor).unwrap_or((count, 1.0));
        let number: f64 = number.trim().replace('_', "").parse().ok()?;
        let tokens = (number * factor).round();
        (0.0..=MOST_TOKENS).contains(&tokens).then_some(ScheduleLength::Tokens(tokens as u64))
    }

    pub(crate) fn value(&self) -> Value {
        match self {
            ScheduleLength::Unset => "".into(),
            ScheduleLength::Steps(count) => (*count).into(),
            ScheduleLength::Percent(percent) => format!("{percent}%").into(),
            ScheduleLength::Tokens(count) => format!("{count} tokens").into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_steps_parts_of_the_run_or_tokens() {
        let table = [
            ("", ScheduleLength::Unset, None),
            ("2%", ScheduleLength::Percent(2.0), Some(20)),
            ("7 %", ScheduleLength::Percent(7.0), Some(70)),
            ("0.01%", ScheduleLength::Percent(0.01), Some(1)),
            ("12 steps", ScheduleLength::Steps(12), Some(12)),
            ("100M tokens", ScheduleLength::Tokens(100_000_000), Some(24_415)),
            ("1.5k tokens", ScheduleLength::Tokens(1_500), Some(1)),
            ("2_000_000 tokens", ScheduleLength::Tokens(2_000_000), Some(489)),
            ("0B tokens", ScheduleLength::Tokens(0), Some(0)),
        ];
        for (text, length, steps) in table {
            assert_eq!(ScheduleLength::parse(text), Some(length), "{text}");
            assert_eq!(length.steps(1000, 4096), steps, "{text}");
            let Value::Text(written) = length.value() else { continue };
            assert_eq!(ScheduleLength::parse(&written), Some(length), "{text}");
        }
        for wrong in
            ["2", "101%", "-1%", "nan%", "x tokens", "-3 tokens", "1e300T tokens", "3 epochs", "M tokens"]
        {
            assert_eq!(ScheduleLength::parse(wrong), None, "{wrong}");
        }
    }
}
