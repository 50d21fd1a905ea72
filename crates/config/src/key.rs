//! What a key is: its name, what it takes, its default and its meaning.

use crate::RunConfig;
use crate::value::Value;
use std::fmt;

/// One key of the configuration. All of them are in the table of `keys.rs`.
pub(crate) struct Key {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    /// `section.name`.
    pub(crate) path: &'static str,
    pub(crate) takes: Takes,
    pub(crate) default: Default,
    /// The kind that this key belongs to: it is refused with another one.
    pub(crate) only: Option<(&'static Key, &'static str)>,
    /// One line: what it means, and its unit.
    pub(crate) meaning: &'static str,
    /// The value in a resolved configuration; `None` if the key does not apply there.
    pub(crate) read: fn(&RunConfig) -> Option<Value>,
}

/// What values a key takes.
pub(crate) enum Takes {
    /// An integer, both bounds included.
    Integer(u64, u64),
    /// A finite number in single precision.
    Number(Interval),
    /// `true` or `false`.
    Flag,
    /// One of some names.
    Choice(&'static [&'static str]),
    /// One of some names, or an integer, both bounds included.
    ChoiceOrInteger(&'static [&'static str], u64, u64),
    /// Any string.
    Text,
    /// A list of strings.
    Texts,
    /// A list of at least so many integers, each within the bounds.
    Integers(usize, u64, u64),
    /// One of some names, or a list of integers within the bounds.
    ChoiceOrIntegers(&'static [&'static str], u64, u64),
}

/// Where a number has to lie.
#[derive(Clone, Copy)]
pub(crate) enum Interval {
    /// \[0, ∞)
    NotNegative,
    /// (0, ∞)
    Positive,
    /// \[0, 1)
    Fraction,
    /// (0, 1)
    Part,
}

/// What holds when a key is not written.
pub(crate) enum Default {
    /// A value as TOML.
    Literal(&'static str),
    /// What it follows from, in words.
    Derived(&'static str),
}

impl Interval {
    /// Judged in single precision, which the trainer computes in: 1e-60 is zero there and 1e60 is infinite.
    pub(crate) fn contains(self, number: f64) -> bool {
        let single = number as f32;
        single.is_finite()
            && match self {
                Self::NotNegative => single >= 0.0,
                Self::Positive => single > 0.0,
                Self::Fraction => (0.0..1.0).contains(&single),
                Self::Part => single > 0.0 && single < 1.0,
            }
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(least, most) => write!(f, "an integer from {least} to {most}"),
            Self::Number(Interval::NotNegative) => f.write_str("a finite number, 0 or more"),
            Self::Number(Interval::Positive) => f.write_str("a finite number above 0"),
            Self::Number(Interval::Fraction) => f.write_str("a number from 0 to below 1"),
            Self::Number(Interval::Part) => f.write_str("a number above 0 and below 1"),
            Self::Flag => f.write_str("true or false"),
            Self::Choice(names) => f.write_str(&quoted(names)),
            Self::ChoiceOrIntegers(names, least, most) => {
                write!(f, "{}, or a list of integers from {least} to {most}", quoted(names))
            }
            Self::ChoiceOrInteger(names, least, most) => {
                write!(f, "{} or an integer from {least} to {most}", quoted(names))
            }
            Self::Text => f.write_str("a string"),
            Self::Texts => f.write_str("a list of strings"),
            Self::Integers(count, least, most) => {
                write!(f, "a list of {count} or more integers from {least} to {most}")
            }
        }
    }
}

fn quoted(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    quoted.join(" or ")
}

impl fmt::Display for Default {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(text) | Self::Derived(text) => f.write_str(text),
        }
    }
}
