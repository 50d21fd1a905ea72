//! Origins: where values were written.

use std::fmt;

/// The origin of a value, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of the configuration file, from 1; no line for a value that is not in the file.
    File {
        /// Name of the file as written.
        name: String,
        /// Number of the line, if any.
        line: Option<usize>,
    },
    /// An override on the command line.
    Override {
        /// The argument of `--set`.
        argument: String,
    },
}

impl Origin {
    /// Returns whether the origin is an override on the command line.
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
