//! Keys: everything about a key except the type of its field.

use crate::takes::Takes;
use crate::value::Value;

/// A key of the configuration: its name, the values that it accepts, its default and what it decides.
#[derive(Clone, Debug)]
pub struct Key {
    /// Name of the section.
    pub section: &'static str,
    /// Name of the key within its section.
    pub name: &'static str,
    /// Path of the key, `section.name`.
    pub path: &'static str,
    /// The lines of the key's documentation.
    pub doc: &'static [&'static str],
    /// The values that the key accepts.
    pub takes: Takes,
    /// The value if the key is not written.
    pub default: Default,
    /// Values of another key to which this key belongs: it is refused with any other.
    pub only: Option<Only>,
    /// Whether the value decides a run's losses and weights.
    pub decides_bits: bool,
    /// Whether a run may be continued with another value; true for all keys that decide no bits.
    pub may_change: bool,
    /// Whether the value decides how long a layer of a run takes on a device.
    pub decides_times: bool,
    /// Whether the value is a path of this machine, which may differ on other machines of the job.
    pub is_local: bool,
    /// Former name of the key.
    pub renamed: Option<Renamed>,
}

/// The value of a key that is not written.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// A value, as TOML.
    Literal(&'static str),
    /// A value that follows from other keys, described in words; the key's row has the rule as code.
    Derived(&'static str),
}

/// The values of another key to which a key belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    /// Path of the other key.
    pub key: &'static str,
    /// Names of the other key's values.
    pub is: &'static [&'static str],
}

impl Only {
    /// Returns whether `value` of the other key is one of the names.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        matches!(value, Value::Text(name) if self.is.contains(&name.as_str()))
    }
}

/// A former name of a key.
#[derive(Clone, Copy, Debug)]
pub struct Renamed {
    /// The former path, `section.name`.
    pub from: &'static str,
    /// How a value translates, with its separator; empty if it is unchanged.
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
