//! Everything about a key but the type of its field.

use crate::error::Error;
use crate::given::Given;
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
    pub(crate) doc: &'static [&'static str],
    /// The values that it takes.
    pub takes: Takes,
    /// The value that holds when the key is not written.
    pub default: Default,
    /// The value of another key that this key belongs to: it is refused with any other.
    pub only: Option<Only>,
    /// True if the value decides the losses and weights of a run.
    pub decides_bits: bool,
    /// True if the value decides how long a layer of a run takes on a device.
    pub decides_times: bool,
    /// True for a path of this machine, which ranks on other machines may have elsewhere.
    pub is_local: bool,
    /// Values that are known and refused.
    pub(crate) unbuilt: Option<Unbuilt>,
    /// The key's former name.
    pub renamed: Option<Renamed>,
}

/// The value that holds when a key is not written.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// A value as TOML.
    Literal(&'static str),
    /// A value that follows from other keys: the rule in words, and as code.
    Derived(&'static str, fn(&Given) -> Result<Value, Error>),
}

/// The value of another key that a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    /// The path of the other key.
    pub key: &'static str,
    /// Its value, a name.
    pub is: &'static str,
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
            decides_times: false,
            is_local: false,
            unbuilt: None,
            renamed: None,
        }
    }

    /// Returns this key as one that belongs to a kind only.
    #[must_use]
    pub fn for_kind(&self, only: Only) -> Self {
        Self { only: Some(only), ..self.clone() }
    }

    /// Returns whether some values of the key are known and refused.
    #[must_use]
    pub fn has_unbuilt_values(&self) -> bool {
        self.unbuilt.is_some()
    }

    /// Returns the documentation as one line.
    #[must_use]
    pub fn meaning(&self) -> String {
        self.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }
}
