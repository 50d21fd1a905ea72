//! The value of a key with the type and the range that its key demands.

use crate::error::ConfigError;
use crate::key::{Key, Takes};
use crate::raw::{Entry, Raw, nearest};
use crate::value::Value;

/// The value of a key, converted by `convert`: `None` is another type, `Some(None)` is out of range.
fn get<T>(
    raw: &Raw,
    key: &'static Key,
    convert: impl Fn(&Value) -> Option<Option<T>>,
) -> Result<T, ConfigError> {
    let absent = || Entry { value: Value::Other("nothing"), shown: String::new(), place: raw.place(&[]) };
    let Entry { value, shown, place } = raw.value(key).unwrap_or_else(absent);
    match convert(&value) {
        Some(Some(value)) => Ok(value),
        Some(None) => {
            let mut allowed = key.takes.to_string();
            let names = match &key.takes {
                Takes::Choice(names)
                | Takes::ChoiceOrInteger(names, ..)
                | Takes::ChoiceOrIntegers(names, ..) => *names,
                _ => &[],
            };
            if let ([_, _, ..], Value::Text(name)) = (names, &value) {
                allowed += &format!(": did you mean \"{}\"?", nearest(name, names.iter().copied()));
            }
            Err(ConfigError::OutOfRange { place, key: key.path, value: shown, allowed })
        }
        None => {
            let found = format!("{} {shown}", value.what());
            Err(ConfigError::WrongType { place, key: key.path, allowed: key.takes.to_string(), found })
        }
    }
}

pub(crate) fn integer(raw: &Raw, key: &'static Key) -> Result<u64, ConfigError> {
    let Takes::Integer(least, most) = key.takes else { return get(raw, key, |_| None) };
    get(raw, key, |value| match value {
        Value::Integer(number) => Some(within(*number, least, most)),
        _ => None,
    })
}

fn within(number: i128, least: u64, most: u64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| (least..=most).contains(number))
}

pub(crate) fn size(raw: &Raw, key: &'static Key) -> Result<usize, ConfigError> {
    // The largest of these ranges is far within usize; on a small machine what exceeds it fails later, as too large.
    integer(raw, key).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
}

pub(crate) fn sizes(raw: &Raw, key: &'static Key) -> Result<Vec<usize>, ConfigError> {
    let Takes::Integers(count, least, most) = key.takes else { return get(raw, key, |_| None) };
    get(raw, key, |value| {
        let Value::List(values) = value else { return None };
        let mut sizes = Vec::new();
        let mut good = values.len() >= count;
        for value in values {
            let Value::Integer(number) = value else { return None };
            let size = within(*number, least, most).and_then(|number| usize::try_from(number).ok());
            good &= size.is_some();
            sizes.extend(size);
        }
        Some(good.then_some(sizes))
    })
}

/// The value of a key that takes a name or a list of integers.
pub(crate) fn choice_or_sizes<T>(
    raw: &Raw,
    key: &'static Key,
    from_name: impl Fn(&str) -> Option<T>,
    from_sizes: impl Fn(Vec<usize>) -> T,
) -> Result<T, ConfigError> {
    let Takes::ChoiceOrIntegers(_, least, most) = key.takes else { return get(raw, key, |_| None) };
    get(raw, key, |value| match value {
        Value::Text(name) => Some(from_name(name)),
        Value::List(values) => {
            let mut sizes = Vec::new();
            for value in values {
                let Value::Integer(number) = value else { return None };
                sizes.extend(within(*number, least, most).and_then(|number| usize::try_from(number).ok()));
            }
            Some((sizes.len() == values.len()).then(|| from_sizes(sizes)))
        }
        _ => None,
    })
}

pub(crate) fn number(raw: &Raw, key: &'static Key) -> Result<f64, ConfigError> {
    let Takes::Number(interval) = key.takes else { return get(raw, key, |_| None) };
    get(raw, key, |value| {
        let number = match value {
            Value::Float(number) => *number,
            Value::Integer(number) => *number as f64,
            _ => return None,
        };
        // A negative zero would come back as another configuration text.
        Some(interval.contains(number).then_some(number + 0.0))
    })
}

pub(crate) fn flag(raw: &Raw, key: &'static Key) -> Result<bool, ConfigError> {
    get(raw, key, |value| match value {
        Value::Flag(flag) => Some(Some(*flag)),
        _ => None,
    })
}

pub(crate) fn text(raw: &Raw, key: &'static Key) -> Result<String, ConfigError> {
    get(raw, key, |value| match value {
        Value::Text(text) => Some(Some(text.clone())),
        _ => None,
    })
}

pub(crate) fn texts(raw: &Raw, key: &'static Key) -> Result<Vec<String>, ConfigError> {
    get(raw, key, |value| {
        let Value::List(values) = value else { return None };
        let texts = values.iter().map(|value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        });
        texts.collect::<Option<Vec<_>>>().map(Some)
    })
}

pub(crate) fn choice<T>(
    raw: &Raw,
    key: &'static Key,
    from_name: impl Fn(&str) -> Option<T>,
) -> Result<T, ConfigError> {
    get(raw, key, |value| match value {
        Value::Text(name) => Some(from_name(name)),
        _ => None,
    })
}

/// A name, or a number within the key's bounds.
pub(crate) fn choice_or_integer<T>(
    raw: &Raw,
    key: &'static Key,
    from_name: impl Fn(&str) -> Option<T>,
    from_number: impl Fn(u64) -> T,
) -> Result<T, ConfigError> {
    let Takes::ChoiceOrInteger(_, least, most) = key.takes else { return get(raw, key, |_| None) };
    get(raw, key, |value| match value {
        Value::Text(name) => Some(from_name(name)),
        Value::Integer(number) => Some(within(*number, least, most).map(&from_number)),
        _ => None,
    })
}
