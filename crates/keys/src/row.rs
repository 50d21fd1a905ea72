//! Rows: keys with the functions that read and write their fields.

use crate::codec::{self, Reading};
use crate::error::Result;
use crate::key::{Default, Key, Only, Renamed};
use crate::raw_values::RawValues;
use crate::takes::{Interval, Takes};
use crate::value::Value;

/// Definition of a key whose field has type `T`.
///
/// A new row affects losses and weights. Its default is an empty string until [`Row::default`] or
/// [`Row::derived`] sets another.
pub struct Row<T> {
    pub(crate) key: Key,
    read: fn(&Value, &Takes) -> Reading<T>,
    write: fn(&T) -> Value,
    rule: Option<fn(&RawValues) -> Result<Value>>,
    finish: Option<fn(T, &RawValues) -> Result<T>>,
}

impl<T> Row<T> {
    /// Creates a row with its own functions for reading and writing.
    #[must_use]
    pub const fn new(takes: Takes, read: fn(&Value, &Takes) -> Reading<T>, write: fn(&T) -> Value) -> Self {
        Self { key: Key::new(takes), read, write, rule: None, finish: None }
    }

    /// Sets the value of a key that is not written, in TOML.
    #[must_use]
    pub const fn default(mut self, literal: &'static str) -> Self {
        self.key.default = Default::Literal(literal);
        self
    }

    /// Sets a default that is derived from other keys, by the rule in words and as code.
    #[must_use]
    pub const fn derived(mut self, words: &'static str, rule: fn(&RawValues) -> Result<Value>) -> Self {
        self.key.default = Default::Derived(words);
        self.rule = Some(rule);
        self
    }

    /// Refuses the key unless the key at path `key` has one of the values named in `is`.
    #[must_use]
    pub const fn only(mut self, key: &'static str, is: &'static [&'static str]) -> Self {
        self.key.only = Some(Only { key, is, or_in: None });
        self
    }

    /// Refuses the key unless the key at path `key` has one of the values named in `is`, there or in a table
    /// of the list at path `tables`.
    #[must_use]
    pub const fn only_or_in(
        mut self,
        key: &'static str,
        is: &'static [&'static str],
        tables: &'static str,
    ) -> Self {
        self.key.only = Some(Only { key, is, or_in: Some(tables) });
        self
    }

    /// Declares that the value affects neither losses nor weights, so that a run may be resumed with another
    /// value.
    #[must_use]
    pub const fn any_bits(mut self) -> Self {
        self.key.decides_bits = false;
        self.may_change()
    }

    /// Declares that a run may be resumed with another value, which affects losses and weights from then on.
    #[must_use]
    pub const fn may_change(mut self) -> Self {
        self.key.may_change = true;
        self
    }

    /// Declares that the value affects how long a layer takes on a device, so that measured times are valid
    /// for this value only.
    #[must_use]
    pub const fn decides_times(mut self) -> Self {
        self.key.decides_times = true;
        self
    }

    /// Declares that the value is a path on this machine.
    #[must_use]
    pub const fn local(mut self) -> Self {
        self.key.is_local = true;
        self
    }

    /// Sets the former path `from`, which is refused with an error that names the current path and, in `how`,
    /// how to translate a value.
    #[must_use]
    pub const fn renamed(mut self, from: &'static str, how: &'static str) -> Self {
        self.key.renamed = Some(Renamed { from, how });
        self
    }

    /// Passes the configured or default value through `finish`, which may read other keys.
    #[must_use]
    pub const fn finish(mut self, finish: fn(T, &RawValues) -> Result<T>) -> Self {
        self.finish = Some(finish);
        self
    }

    /// Sets the row's section and name. Used by [`crate::section!`].
    #[must_use]
    pub const fn at(
        mut self,
        section: &'static str,
        name: &'static str,
        path: &'static str,
        doc: &'static [&'static str],
    ) -> Self {
        self.key.section = section;
        self.key.name = name;
        self.key.path = path;
        self.key.doc = doc;
        self
    }

    /// Returns the key of this row.
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Reads the configured value or the default.
    ///
    /// # Errors
    /// A value that the key does not accept.
    pub fn read(&self, raw: &RawValues) -> Result<T> {
        let value = match self.rule.filter(|_| !raw.is_set(self.key.path)) {
            Some(rule) => raw.read_value(&self.key, rule(raw)?, self.read)?,
            None => raw.read(&self.key, self.read)?,
        };
        match self.finish {
            Some(finish) => finish(value, raw),
            None => Ok(value),
        }
    }

    /// Returns the value as it is written in a configuration.
    pub fn write(&self, value: &T) -> Value {
        (self.write)(value)
    }
}

impl Row<u64> {
    /// Creates a row for an integer from `least` to `most`, inclusive.
    #[must_use]
    pub const fn integer(least: u64, most: u64) -> Self {
        Self::new(Takes::Integer(least, most), codec::integer, |number| (*number).into())
    }
}

impl Row<u32> {
    /// Creates a row for a 32-bit integer from `least` to `most`, inclusive.
    #[must_use]
    pub const fn small(least: u32, most: u32) -> Self {
        let takes = Takes::Integer(least as u64, most as u64);
        Self::new(
            takes,
            |value, takes| codec::integer(value, takes).try_into(),
            |number| u64::from(*number).into(),
        )
    }
}

impl Row<usize> {
    /// Creates a row for a count from `least` to `most`, inclusive.
    #[must_use]
    pub const fn count(least: u64, most: u64) -> Self {
        Self::new(
            Takes::Integer(least, most),
            |value, takes| takes.read_count(value),
            |number| (*number).into(),
        )
    }
}

impl Row<f64> {
    /// Creates a row for a number in an interval.
    #[must_use]
    pub const fn number(interval: Interval) -> Self {
        Self::new(Takes::Number(interval), codec::number, |number| (*number).into())
    }
}

impl Row<bool> {
    /// Creates a row for `true` or `false`.
    #[must_use]
    pub const fn flag() -> Self {
        Self::new(Takes::Flag, codec::flag, |flag| (*flag).into())
    }
}

impl Row<String> {
    /// Creates a row for any string.
    #[must_use]
    pub const fn text() -> Self {
        Self::new(Takes::Text, codec::text, |text| text.as_str().into())
    }
}

impl Row<Vec<String>> {
    /// Creates a row for a list of strings.
    #[must_use]
    pub const fn texts() -> Self {
        Self::new(Takes::Texts, codec::texts, |texts| texts.as_slice().into())
    }

    /// Creates a row for a list of strings. A single string is accepted as a list of one.
    #[must_use]
    pub const fn text_or_texts() -> Self {
        Self::new(Takes::TextOrTexts, codec::texts, |texts| texts.as_slice().into())
    }
}

impl Row<Vec<usize>> {
    /// Creates a row for a list of at least `count` integers from `least` to `most`, inclusive.
    #[must_use]
    pub const fn counts(count: usize, least: u64, most: u64) -> Self {
        Self::new(Takes::Integers(count, least, most), codec::integers, |counts| counts.as_slice().into())
    }
}

impl Row<Vec<f64>> {
    /// Creates a row for a list of one or more numbers in an interval.
    #[must_use]
    pub const fn numbers(interval: Interval) -> Self {
        Self::new(Takes::Numbers(interval), codec::numbers, |numbers| numbers.as_slice().into())
    }
}

/// Creates a row for values of an enumeration, written by name.
///
/// `Row::choice!(Type, VALUES)`: `VALUES` is a constant slice or array, and `Type::name` is a `const fn`
/// taking `self`. A third argument replaces that function.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// pub enum Colour { Red, Green }
/// impl Colour {
///     const fn name(self) -> &'static str {
///         match self { Colour::Red => "red", Colour::Green => "green" }
///     }
/// }
/// let row = keys::choice!(Colour, [Colour::Red, Colour::Green]).default("\"red\"");
/// assert_eq!(row.key().takes.to_string(), "\"red\" or \"green\"");
/// ```
#[macro_export]
macro_rules! choice {
    ($type:ty, $values:expr) => {
        $crate::choice!($type, $values, <$type>::name)
    };
    ($type:ty, $values:expr, $name:expr) => {{
        const COUNT: usize = $values.len();
        const NAMES: [&str; COUNT] = {
            let mut names = [""; COUNT];
            let mut index = 0;
            while index < COUNT {
                names[index] = $name($values[index]);
                index += 1;
            }
            names
        };
        $crate::Row::<$type>::new(
            $crate::Takes::Choice(&NAMES),
            |value, _| match value {
                $crate::Value::Text(text) => {
                    let position = NAMES.iter().position(|name| name == text);
                    $crate::Reading::within(position.and_then(|index| $values.get(index).copied()))
                }
                _ => $crate::Reading::WrongType,
            },
            |value| $name(*value).into(),
        )
    }};
}
