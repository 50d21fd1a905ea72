//! The place where a value was written.

use std::fmt;

/// The place where a value was written, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of the configuration file, from 1; no line for a value that the file does not have.
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

impl Origin {
    /// Returns true for an override on the command line.
    #[must_use]
    pub fn is_override(&self) -> bool {
        matches!(self, Self::Override { .. })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line: Some(line) } => write!(f, "{name}:{line}"),
            Self::File { name, line: None } => f.write_str(name),
            Self::Override { argument } => write!(f, "--set {argument}"),
        }
    }
}
