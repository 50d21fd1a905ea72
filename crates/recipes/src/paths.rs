//! Paths in a configuration, which are relative to its file.

use std::path::{Component, Path, PathBuf};

use config::normal_path;

/// The directory in which a command runs, and the directory of the configuration that it writes.
#[derive(Clone, Debug)]
pub struct Directories {
    current: PathBuf,
    file: PathBuf,
}

impl Directories {
    /// Returns the directories for a configuration that is written to `file`, or printed.
    ///
    /// # Errors
    /// The current directory cannot be read.
    pub fn of_file(file: Option<&Path>) -> std::io::Result<Self> {
        Ok(Self::new(&std::env::current_dir()?, file))
    }

    /// Returns the directories for a command that runs in the absolute directory `current`, and whose
    /// configuration is written to `file` or printed.
    #[must_use]
    pub fn new(current: &Path, file: Option<&Path>) -> Self {
        let parent = file.and_then(Path::parent).unwrap_or(Path::new(""));
        Self { file: normal_path(&current.join(parent)), current: normal_path(current) }
    }

    /// Returns the directory of the configuration.
    #[must_use]
    pub fn of_configuration(&self) -> &Path {
        &self.file
    }

    /// Returns the directory in which the command runs.
    #[must_use]
    pub fn current(&self) -> &Path {
        &self.current
    }

    /// Converts a path or glob for use in the configuration. A relative path becomes relative to the
    /// configuration instead of the current directory.
    #[must_use]
    pub fn for_configuration(&self, path: &str) -> String {
        if Path::new(path).is_absolute() || self.current == self.file {
            return path.to_owned();
        }
        let target = normal_path(&self.current.join(path));
        let shared = self.file.components().zip(target.components()).take_while(|(a, b)| a == b).count();
        let up = self.file.components().skip(shared).map(|_| Component::ParentDir);
        let down = target.components().skip(shared);
        let relative: PathBuf = up.chain(down).collect();
        match relative.as_os_str().is_empty() {
            true => ".".to_owned(),
            false => relative.to_string_lossy().into_owned(),
        }
    }
}
