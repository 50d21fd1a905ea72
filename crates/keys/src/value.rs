//! Values as written in TOML, before their keys check them.

use std::borrow::Cow;
use std::fmt;
use toml::Spanned;
use toml::de::DeValue;

/// A value of a configuration file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer. The type is wider than any key allows, so that a range error can show it; even wider ones
    /// saturate.
    Integer(i128),
    /// A floating-point number.
    Float(f64),
    /// `true` or `false`.
    Flag(bool),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A table, with its entries in the order of the file.
    Table(Vec<(String, Value)>),
    /// The name of another TOML type, such as a date, with its article. No key accepts one.
    Other(&'static str),
}

impl Value {
    pub(crate) fn from_toml(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text.clone().into_owned()),
            DeValue::Integer(number) => {
                let limit = if number.as_str().starts_with('-') { i128::MIN } else { i128::MAX };
                Self::Integer(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(limit))
            }
            DeValue::Float(number) => Self::Float(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Self::Flag(*flag),
            DeValue::Datetime(_) => Self::Other("the date"),
            DeValue::Array(values) => {
                Self::List(values.iter().map(|v| Self::from_toml(v.get_ref())).collect())
            }
            DeValue::Table(table) => {
                let mut entries: Vec<_> = table.iter().collect();
                entries.sort_by_key(|(key, _)| key.span().start);
                let entry = |(key, value): &(&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                    (key.get_ref().clone().into_owned(), Self::from_toml(value.get_ref()))
                };
                Self::Table(entries.iter().map(entry).collect())
            }
        }
    }

    /// Returns the name of the value's type with its article, for messages that print it before the value.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Integer(_) => "the integer",
            Self::Float(_) => "the float",
            Self::Flag(_) => "the boolean",
            Self::Text(_) => "the string",
            Self::List(_) => "the list",
            Self::Table(_) => "the table",
            Self::Other(what) => what,
        }
    }
}

/// Prints the value as TOML.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            // Debug prints the shortest text that reads back as the same number and is always recognisable as
            // a float.
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => quote(f, text),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Table(entries) => {
                f.write_str("{")?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    write!(f, "{} ", if index == 0 { "" } else { "," })?;
                    quote(f, key)?;
                    write!(f, " = {value}")?;
                }
                f.write_str(" }")
            }
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// Prints a TOML basic string on one line.
fn quote(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for character in text.chars() {
        match character {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            control if control.is_control() => write!(f, "\\u{:04X}", u32::from(control))?,
            other => write!(f, "{other}")?,
        }
    }
    f.write_str("\"")
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Integer(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Integer(number as i128)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<T: Into<Value> + Clone> From<&[T]> for Value {
    fn from(values: &[T]) -> Self {
        Self::List(values.iter().cloned().map(Into::into).collect())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
