//! Files that only this user can have written.

use std::fs::{self, DirBuilder, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::process::geteuid;

use crate::{input, output};

/// Reads a file of at most `most` bytes. The file and its directory must belong to this user and be writable
/// by nobody else.
///
/// # Errors
/// As for [`input::read`]; of kind `PermissionDenied` if others could have written the file.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    check_directory(path)?;
    check(&fs::symlink_metadata(path)?, "the file")?;
    input::read(path, most)
}

/// Writes a file atomically, in a directory that is created for this user alone if it does not exist.
///
/// # Errors
/// The system fails, or others can write to the directory.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    check_directory(path)?;
    output::write_with_mode(path, bytes, 0o600)
}

/// Creates a directory for this user alone inside an existing one, unless it exists.
///
/// # Errors
/// The system fails; of kind `PermissionDenied` if the directory belongs to another user or others can write
/// to it.
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
    // A link's own permissions are meaningless: anyone who can write to its directory can replace it.
    if !metadata.is_symlink() && metadata.mode() & 0o022 != 0 {
        return denied("can be written by others (chmod go-w)");
    }
    Ok(())
}
