//! The one module with `unsafe`: files mapped into memory, read-only.

#![expect(unsafe_code, reason = "mapping a file is unsafe: another process can change it meanwhile")]

use crate::Error;
use memmap2::Mmap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Maps a regular file. The file itself is closed again; the mapping lives on. `None`: it is empty (the
/// operating system maps no empty range).
pub(crate) fn map(path: &Path) -> Result<Option<Mmap>, Error> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => Error::Missing { path: path.to_path_buf() },
        _ => Error::Unreadable { path: path.to_path_buf(), source },
    };
    // Asked before opening: to open a pipe would wait for its writer.
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a directory" } else { "a device, pipe or socket" };
        return Err(Error::NotAFile { path: path.to_path_buf(), what });
    }
    if metadata.len() == 0 {
        return Ok(None);
    }
    let file = File::open(path).map_err(unreadable)?;
    // If someone changes the file all the same, reads give other bytes or, where it is cut short, end the
    // process with a bus error: there is no portable way to hold others to it, and a copy is what this module
    // exists to avoid. SAFETY: a private, read-only mapping, of which only `&[u8]` is made; the corpus's
    // documentation demands that files stay.
    unsafe { Mmap::map(&file) }.map(Some).map_err(unreadable)
}
