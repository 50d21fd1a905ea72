//! Errors of configurations: one sentence each, beginning with the file and line or the argument.

use std::io;
use std::path::PathBuf;

use crate::origin::Origin;

/// Result of reading a configuration.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a configuration is refused. Its text is one sentence with the origin, the key and the value.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum Error {
    #[error("{path} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{origin}: {message}")]
    Syntax { origin: Origin, message: String },
    /// An argument of `--set` that is not `section.key=value`.
    #[error("{origin}: write --set section.key=value, such as --set train.steps=100")]
    BadOverride { origin: Origin },
    /// A section or key that does not exist.
    #[error("{origin}: unknown {what} {name}{hint}")]
    Unknown {
        origin: Origin,
        /// Kind of the unknown name: `key` or `section`.
        what: &'static str,
        name: String,
        /// Suggested names or other advice, beginning with its separator; empty if there is none.
        hint: String,
    },
    /// A key was written by its former name.
    #[error("{origin}: {old} is now {new}{how}")]
    Renamed {
        origin: Origin,
        /// The former path, `section.name`.
        old: &'static str,
        /// The current path, `section.name`.
        new: &'static str,
        /// How a value of the old key is translated, beginning with its separator; empty if it is unchanged.
        how: &'static str,
    },
    #[error("{origin}: {section} is a section, not a key: write [{section}] and its keys below")]
    NotASection { origin: Origin, section: &'static str },
    #[error("{origin}: {key} takes {allowed}, not {value}")]
    WrongType { origin: Origin, key: &'static str, allowed: String, value: String },
    /// A value of the right type that its key does not accept.
    #[error("{origin}: {key} = {value} is not {allowed}")]
    OutOfRange { origin: Origin, key: &'static str, value: String, allowed: String },
    /// A value of the right type that its key refuses, with the reason.
    #[error("{origin}: {key}: {reason}")]
    Refused { origin: Origin, key: &'static str, reason: String },
    /// A key that does not apply because of another key's value, such as a key of another model family.
    #[error("{origin}: {key} belongs to {kind_key} = {needed}, and {kind_key} is {kind}")]
    NotApplicable {
        origin: Origin,
        key: &'static str,
        kind_key: &'static str,
        /// Values of `kind_key` to which this key applies, in quotes.
        needed: String,
        kind: String,
    },
    #[error("{origin}: {reason}")]
    Conflict { origin: Origin, reason: String },
}
