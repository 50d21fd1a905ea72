//! The values that a key accepts.

use std::fmt;

use system::numbers::grouped;

/// Values that a key accepts. Messages and the reference print its `Display` text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Takes {
    /// An integer from the first to the second bound, inclusive.
    Integer(u64, u64),
    /// A number that is finite in single precision.
    Number(Interval),
    /// `true` or `false`.
    Flag,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// One of these names, or an integer within the bounds, inclusive.
    ChoiceOrInteger(&'static [&'static str], u64, u64),
    /// One of these names, or a list of integers within the bounds, inclusive.
    ChoiceOrIntegers(&'static [&'static str], u64, u64),
    /// Any string.
    Text,
    /// A list of strings.
    Texts,
    /// A list of strings; a single string is accepted as a list of one.
    TextOrTexts,
    /// A list of tables with these keys.
    Tables(&'static [&'static str]),
    /// A list of at least this many integers, each within the bounds, inclusive.
    Integers(usize, u64, u64),
    /// A list of one or more numbers in an interval.
    Numbers(Interval),
    /// An integer or a string that the key reads itself, in words.
    Described(&'static str),
}

/// Interval of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Any: (−∞, ∞)
    Any,
    /// At least 0: \[0, ∞)
    NotNegative,
    /// Greater than 0: (0, ∞)
    Positive,
    /// At least 0 and less than 1: \[0, 1)
    Fraction,
    /// Between 0 and 1, both excluded: (0, 1)
    Inside,
}

impl Takes {
    /// Returns the names among the values; empty if there are none.
    #[must_use]
    pub fn names(&self) -> &'static [&'static str] {
        match *self {
            Self::Choice(names) | Self::ChoiceOrInteger(names, ..) | Self::ChoiceOrIntegers(names, ..) => {
                names
            }
            _ => &[],
        }
    }

    /// Returns `number` if it is within the bounds of an integer or of a list's integers.
    pub(crate) fn contains(&self, number: i128) -> Option<u64> {
        let (Self::Integer(least, most)
        | Self::ChoiceOrInteger(_, least, most)
        | Self::ChoiceOrIntegers(_, least, most)
        | Self::Integers(_, least, most)) = *self
        else {
            return None;
        };
        u64::try_from(number).ok().filter(|number| (least..=most).contains(number))
    }
}

impl Interval {
    /// Returns whether `number` is in the interval after rounding to f32, in which training computes: there
    /// 1e-60 is zero and 1e60 is infinite.
    pub(crate) fn contains(self, number: f64) -> bool {
        let single = number as f32;
        single.is_finite()
            && match self {
                Self::Any => true,
                Self::NotNegative => single >= 0.0,
                Self::Positive => single > 0.0,
                Self::Fraction => (0.0..1.0).contains(&single),
                Self::Inside => single > 0.0 && single < 1.0,
            }
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(least, most) => write!(f, "an integer {}", bounds(*least, *most)),
            Self::Number(Interval::Any) => f.write_str("a number in the range of f32"),
            Self::Number(Interval::NotNegative) => f.write_str("0 or a positive number in the range of f32"),
            Self::Number(Interval::Positive) => f.write_str("a positive number in the range of f32"),
            Self::Number(Interval::Fraction) => f.write_str("a number from 0 to below 1"),
            Self::Number(Interval::Inside) => f.write_str("a number above 0 and below 1"),
            Self::Flag => f.write_str("true or false"),
            Self::Choice(names) => f.write_str(&quoted(names)),
            Self::ChoiceOrIntegers(names, least, most) => {
                write!(f, "{}, or a list of integers {}", quoted(names), bounds(*least, *most))
            }
            Self::ChoiceOrInteger(names, least, most) => {
                write!(f, "{} or an integer {}", quoted(names), bounds(*least, *most))
            }
            Self::Text => f.write_str("a string"),
            Self::Texts => f.write_str("a list of strings"),
            Self::TextOrTexts => f.write_str("a string or a list of strings"),
            Self::Tables(keys) => write!(f, "a list of tables with {}", keys.join(", ")),
            Self::Integers(count, least, most) => {
                write!(f, "a list of {count} or more integers {}", bounds(*least, *most))
            }
            Self::Described(words) => f.write_str(words),
            Self::Numbers(interval) => write!(f, "a list, each of {}", Self::Number(*interval)),
        }
    }
}

fn bounds(least: u64, most: u64) -> String {
    format!("from {} to {}", grouped(least), grouped(most))
}

/// Formats names as `"a" or "b"`.
pub(crate) fn quoted(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    quoted.join(" or ")
}
