//! Everything about a key but the type of its field.

use crate::takes::Takes;
use crate::value::Value;

/// A key of the configuration: its name, the values that it takes, its default and what it decides.
#[derive(Clone, Debug)]
pub struct Key {
    /// The section's name.
    pub section: &'static str,
    /// The key's name within its section.
    pub name: &'static str,
    /// `section.name`.
    pub path: &'static str,
    /// The lines of its documentation.
    pub doc: &'static [&'static str],
    /// The values that it takes.
    pub takes: Takes,
    /// The value that holds when the key is not written.
    pub default: Default,
    /// The values of another key that this key belongs to: it is refused with any other.
    pub only: Option<Only>,
    /// True if the value decides the losses and weights of a run.
    pub decides_bits: bool,
    /// True if a run may be continued with another value: always where the value decides no bits.
    pub may_change: bool,
    /// True if the value decides how long a layer of a run takes on a device.
    pub decides_times: bool,
    /// True for a path of this machine, which ranks on other machines may have elsewhere.
    pub is_local: bool,
    /// Values that are known and refused.
    pub unbuilt: Option<Unbuilt>,
    /// The key's former name.
    pub renamed: Option<Renamed>,
}

/// The value that holds when a key is not written.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// A value as TOML.
    Literal(&'static str),
    /// A value that follows from other keys, in words; its row has the rule as code.
    Derived(&'static str),
}

/// The values of another key that a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    /// The path of the other key.
    pub key: &'static str,
    /// Its values, which are names.
    pub is: &'static [&'static str],
}

impl Only {
    /// Returns whether `value` of the other key is one of the names.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        matches!(value, Value::Text(name) if self.is.contains(&name.as_str()))
    }
}

/// Values of a key that are known and refused.
#[derive(Clone, Copy, Debug)]
pub struct Unbuilt {
    /// Returns true for a value that needs the feature. Values that are wrong in another way do not.
    pub needs: fn(&Value) -> bool,
    /// The feature and its verb, before "not built yet".
    pub what: &'static str,
}

/// A former name of a key.
#[derive(Clone, Copy, Debug)]
pub struct Renamed {
    /// The former path, `section.name`.
    pub from: &'static str,
    /// How a value translates, with its separator; empty if it is the same.
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
            unbuilt: None,
            renamed: None,
        }
    }

    /// Returns the documentation as one line.
    #[must_use]
    pub fn meaning(&self) -> String {
        self.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }
}
