//! Reads files: only regular ones, up to a size limit.

use std::borrow::Cow;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use rustix::fs::OFlags;

use crate::numbers::grouped;
use crate::stand_in;

/// First bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Opens a regular file for reading.
///
/// # Errors
/// The system fails, the path is not a regular file (a FIFO is refused without waiting), or it is a pointer
/// to a file, as git-lfs leaves it.
pub fn open(path: &Path) -> Result<File> {
    // Opening some devices has side effects, so the type is checked before. It is checked again on the open
    // file, which may be a different one.
    check_regular(&std::fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    check_regular(&file.metadata()?)?;
    match stand_in::pointer(&file) {
        Some(sentence) => Err(Error::new(ErrorKind::InvalidData, sentence)),
        None => Ok(file),
    }
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// As for [`open`]; the file is longer.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    // System files, as in /proc, have size 0; other overlong files are refused unread.
    if file.metadata()?.len() > most {
        return Err(too_large("it has", most));
    }
    bounded(file, most, "it has")
}

/// Reads a regular file of at most `most` bytes as UTF-8.
///
/// # Errors
/// As for [`read`]; the file is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Returns `bytes`, decompressed if they are gzip data, up to `most` bytes.
///
/// # Errors
/// The data is damaged or longer.
pub fn unpack(bytes: &[u8], most: u64) -> Result<Cow<'_, [u8]>> {
    if !bytes.starts_with(&GZIP) {
        return Ok(Cow::Borrowed(bytes));
    }
    bounded(MultiGzDecoder::new(bytes), most, "it unpacks to").map(Cow::Owned)
}

fn bounded(from: impl Read, most: u64, verb: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(verb, most)) } else { Ok(bytes) }
}

fn too_large(verb: &str, most: u64) -> Error {
    let text = format!("{verb} more than {} bytes, which is the limit", grouped(most));
    Error::new(ErrorKind::FileTooLarge, text)
}

/// Checks that a file is regular.
///
/// # Errors
/// The file is not regular.
pub(crate) fn check_regular(metadata: &Metadata) -> Result<()> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let error = if kind.is_dir() { ErrorKind::IsADirectory } else { ErrorKind::InvalidInput };
    Err(Error::new(error, format!("it is {}, not a regular file", name_of(kind))))
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}
