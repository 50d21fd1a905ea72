//! Keys: the definition of a key except the type of its field.

use crate::takes::Takes;
use crate::value::Value;

/// A configuration key: its name, accepted values, default, and what its value affects.
#[derive(Clone, Debug)]
pub struct Key {
    /// Name of the section.
    pub section: &'static str,
    /// Name of the key within its section.
    pub name: &'static str,
    /// Path of the key, `section.name`, as messages show it.
    pub path: &'static str,
    /// Lines of the key's documentation.
    pub doc: &'static [&'static str],
    /// Values that the key accepts.
    pub takes: Takes,
    /// Value of a key that is not written.
    pub default: Default,
    /// Condition on another key; this key is refused unless it holds. `None`: no condition.
    pub only: Option<Only>,
    /// Whether the value affects a run's losses and weights.
    pub decides_bits: bool,
    /// Whether a run may be resumed with another value. True for all keys that do not affect losses and
    /// weights.
    pub may_change: bool,
    /// Whether the value affects how long a layer takes on a device.
    pub decides_times: bool,
    /// Whether the value is a path on this machine, which may differ on other machines of the job.
    pub is_local: bool,
    /// Former name of the key, if it was renamed.
    pub renamed: Option<Renamed>,
}

/// Value of a key that is not written.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// A fixed value, in TOML.
    Literal(&'static str),
    /// A value derived from other keys, described in words; the key's [`Row`](crate::Row) has the rule as
    /// code.
    Derived(&'static str),
}

/// Condition on another key: it has one of some values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    /// Path of the other key.
    pub key: &'static str,
    /// Names of the other key's values that satisfy the condition.
    pub is: &'static [&'static str],
    /// Path of a list of tables. The condition also holds if one of them has the other key's name with one of
    /// these values.
    pub or_in: Option<&'static str>,
}

impl Only {
    /// Returns whether `value` of the other key satisfies the condition.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        matches!(value, Value::Text(name) if self.is.contains(&name.as_str()))
    }

    /// Returns whether a table of the list `tables`, the value at [`Only::or_in`], satisfies the condition.
    #[must_use]
    pub fn allows_in(&self, tables: &Value) -> bool {
        let name = self.key.rsplit('.').next().unwrap_or(self.key);
        let Value::List(tables) = tables else { return false };
        let mut entries = tables.iter().filter_map(|table| match table {
            Value::Table(entries) => entries.iter().find(|(key, _)| key == name),
            _ => None,
        });
        entries.any(|(_, value)| self.allows(value))
    }
}

/// A former name of a key.
#[derive(Clone, Copy, Debug)]
pub struct Renamed {
    /// The former path, `section.name`.
    pub from: &'static str,
    /// How a value of the old key is translated, beginning with its separator; empty if it is unchanged.
    pub how: &'static str,
}

impl Key {
    pub(crate) const fn new(takes: Takes) -> Self {
        Self {
            section: "",
            name: "",
            path: "",
            doc: &[],
            takes,
            default: Default::Literal("\"\""),
            only: None,
            decides_bits: true,
            may_change: false,
            decides_times: false,
            is_local: false,
            renamed: None,
        }
    }

    /// Returns the documentation as one line.
    #[must_use]
    pub fn meaning(&self) -> String {
        self.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }
}
