//! Conversion of written values to the types of fields.

use crate::takes::Takes;
use crate::value::Value;

/// Outcome of reading a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading<T> {
    /// A value that the key accepts.
    Good(T),
    /// A value of the right type that the key does not accept.
    OutOfRange,
    /// A value of the right type that the key refuses, with the reason.
    Refused(String),
    /// A value of another type.
    WrongType,
}

impl<T> Reading<T> {
    /// Converts an accepted value.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Good(value) => Reading::Good(convert(value)),
            Self::OutOfRange => Reading::OutOfRange,
            Self::Refused(reason) => Reading::Refused(reason),
            Self::WrongType => Reading::WrongType,
        }
    }

    /// Converts an accepted value to another type. A value that does not fit becomes out of range.
    pub fn try_into<U: TryFrom<T>>(self) -> Reading<U> {
        match self {
            Self::Good(value) => Reading::within(U::try_from(value).ok()),
            Self::OutOfRange => Reading::OutOfRange,
            Self::Refused(reason) => Reading::Refused(reason),
            Self::WrongType => Reading::WrongType,
        }
    }

    /// Returns `Good` for a value, and `OutOfRange` for `None`.
    pub fn within(value: Option<T>) -> Self {
        value.map_or(Self::OutOfRange, Self::Good)
    }
}

impl Takes {
    /// Reads an integer within the bounds.
    pub fn read_count(&self, value: &Value) -> Reading<usize> {
        integer(value, self).try_into()
    }

    /// Reads a number in the interval.
    pub fn read_number(&self, value: &Value) -> Reading<f64> {
        number(value, self)
    }

    /// Reads a list of strings.
    pub fn read_texts(&self, value: &Value) -> Reading<Vec<String>> {
        texts(value, self)
    }

    /// Reads a list of integers within the bounds.
    pub fn read_counts(&self, value: &Value) -> Reading<Vec<usize>> {
        integers(value, self)
    }
}

pub(crate) fn integer(value: &Value, takes: &Takes) -> Reading<u64> {
    match value {
        Value::Integer(number) => Reading::within(takes.contains(*number)),
        _ => Reading::WrongType,
    }
}

pub(crate) fn integers(value: &Value, takes: &Takes) -> Reading<Vec<usize>> {
    let Value::List(values) = value else { return Reading::WrongType };
    let least = if let Takes::Integers(count, ..) = takes { *count } else { 0 };
    let mut numbers = Vec::with_capacity(values.len());
    for value in values {
        let Value::Integer(number) = value else { return Reading::WrongType };
        numbers.extend(takes.contains(*number).and_then(|number| usize::try_from(number).ok()));
    }
    let good = numbers.len() == values.len() && numbers.len() >= least;
    Reading::within(good.then_some(numbers))
}

pub(crate) fn number(value: &Value, takes: &Takes) -> Reading<f64> {
    let number = match value {
        Value::Float(number) => *number,
        Value::Integer(number) => *number as f64,
        _ => return Reading::WrongType,
    };
    let (Takes::Number(interval) | Takes::Numbers(interval)) = takes else { return Reading::OutOfRange };
    let good = interval.contains(number);
    // A negative zero would be printed as a different configuration text.
    Reading::within(good.then_some(number + 0.0))
}

pub(crate) fn numbers(value: &Value, takes: &Takes) -> Reading<Vec<f64>> {
    let Value::List(values) = value else { return Reading::WrongType };
    let mut numbers = Vec::with_capacity(values.len());
    for value in values {
        match number(value, takes) {
            Reading::Good(number) => numbers.push(number),
            Reading::OutOfRange => return Reading::OutOfRange,
            Reading::Refused(reason) => return Reading::Refused(reason),
            Reading::WrongType => return Reading::WrongType,
        }
    }
    Reading::within((!numbers.is_empty()).then_some(numbers))
}

pub(crate) fn flag(value: &Value, _: &Takes) -> Reading<bool> {
    match value {
        Value::Flag(flag) => Reading::Good(*flag),
        _ => Reading::WrongType,
    }
}

pub(crate) fn text(value: &Value, _: &Takes) -> Reading<String> {
    match value {
        Value::Text(text) => Reading::Good(text.clone()),
        _ => Reading::WrongType,
    }
}

pub(crate) fn texts(value: &Value, takes: &Takes) -> Reading<Vec<String>> {
    let values = match value {
        Value::List(values) => values.as_slice(),
        Value::Text(_) if matches!(takes, Takes::TextOrTexts) => std::slice::from_ref(value),
        _ => return Reading::WrongType,
    };
    let mut texts = Vec::with_capacity(values.len());
    for value in values {
        let Value::Text(text) = value else { return Reading::WrongType };
        texts.push(text.clone());
    }
    Reading::Good(texts)
}
