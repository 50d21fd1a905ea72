//! What can be wrong with a configuration: one sentence each, which begins with where.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of the configuration file, from 1; without a line, what the file does not say.
    File {
        /// The file as it was named.
        name: String,
        /// The line, if there is one.
        line: Option<usize>,
    },
    /// An override on the command line.
    Override {
        /// The argument after `--set`.
        argument: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line: Some(line) } => write!(f, "{name}:{line}"),
            Self::File { name, line: None } => f.write_str(name),
            Self::Override { argument } => write!(f, "--set {argument}"),
        }
    }
}

/// Why a configuration is refused. The text is one sentence with the place, the key and the value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The text is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the parser says.
        message: String,
    },
    /// An argument of `--set` that is not `section.key=value`.
    #[error("{place}: write --set section.key=value, such as --set train.steps=100")]
    BadOverride {
        /// The argument.
        place: Place,
    },
    /// A section or a key that does not exist.
    #[error("{place}: unknown {what} {name}: did you mean {nearest}?")]
    Unknown {
        /// Where.
        place: Place,
        /// `key` or `section`.
        what: &'static str,
        /// As it is written.
        name: String,
        /// The most similar name that exists.
        nearest: String,
    },
    /// A section's name with a value.
    #[error("{place}: {section} is a section, not a key: write [{section}] and its keys below")]
    NotASection {
        /// Where.
        place: Place,
        /// The section.
        section: &'static str,
    },
    /// A value of a type that its key does not take.
    #[error("{place}: {key} takes {allowed}, not {found}")]
    WrongType {
        /// Where.
        place: Place,
        /// Section and key.
        key: &'static str,
        /// What it takes.
        allowed: String,
        /// What was found, with the value itself.
        found: String,
    },
    /// A value outside of what its key takes.
    #[error("{place}: {key} = {value} is not {allowed}")]
    OutOfRange {
        /// Where.
        place: Place,
        /// Section and key.
        key: &'static str,
        /// The value as it is written.
        value: String,
        /// What it takes.
        allowed: String,
    },
    /// A key of another kind of model, data or optimizer.
    #[error("{place}: {key} belongs to {kind_key} = \"{needed}\", and {kind_key} is {kind}")]
    NotApplicable {
        /// Where.
        place: Place,
        /// Section and key.
        key: &'static str,
        /// The key that decides.
        kind_key: &'static str,
        /// What it would have to be.
        needed: &'static str,
        /// What it is.
        kind: String,
    },
    /// Values that do not go together.
    #[error("{place}: {reason}")]
    Conflict {
        /// The place of one of them.
        place: Place,
        /// Names the keys and values.
        reason: String,
    },
    /// A value whose feature does not exist yet.
    #[error("{place}: {key} = {value}: {what} not built yet")]
    Unbuilt {
        /// Where.
        place: Place,
        /// Section and key.
        key: &'static str,
        /// The value as it is written.
        value: String,
        /// The feature and its verb.
        what: &'static str,
    },
}
