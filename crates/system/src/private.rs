//! Files that only this user can have written.

use std::fs::{self, DirBuilder, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::process::geteuid;

use crate::{input, output};

/// Reads a file of at most `most` bytes that only this user can have written: the file and its directory
/// belong to the user and are writable by nobody else.
///
/// # Errors
/// Errors of [`input::read`]; of kind `PermissionDenied`, a file that others could have written.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    check_directory(path)?;
    check(&fs::symlink_metadata(path)?, "the file")?;
    input::read(path, most)
}

/// Writes a file whole, in a directory that is created for this user alone if it does not exist.
///
/// # Errors
/// The system's; a directory that others can write to.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    check_directory(path)?;
    output::write_with_mode(path, bytes, 0o600)
}

/// Makes a directory for this user alone, in one that exists, unless it is there.
///
/// # Errors
/// The system's; of kind `PermissionDenied`, one that belongs to another user or that others can write to.
pub fn make_directory(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let metadata = fs::symlink_metadata(path)?;
            if !metadata.is_dir() {
                return Err(error);
            }
            check(&metadata, "the directory")
        }
        made => made,
    }
}

fn check_directory(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    check(&fs::metadata(directory.unwrap_or(Path::new(".")))?, "its directory")
}

fn check(metadata: &Metadata, what: &str) -> Result<()> {
    let denied = |why: &str| Err(Error::new(ErrorKind::PermissionDenied, format!("{what} {why}")));
    if metadata.uid() != geteuid().as_raw() {
        return denied("belongs to another user");
    }
    // A link's own permissions have no meaning: whoever can write to its directory can replace it.
    if !metadata.is_symlink() && metadata.mode() & 0o022 != 0 {
        return denied("can be written by others (chmod go-w)");
    }
    Ok(())
}
