//! Origins of values: lines of a file, or arguments of the command line.

use std::fmt;

/// Where a value was written, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration file, with the line of the value if it has one.
    File {
        /// Name of the file as the user wrote it.
        name: String,
        /// Number of the line, from 1; `None` for a value that is not in the file.
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
