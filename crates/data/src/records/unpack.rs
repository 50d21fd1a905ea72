//! Opens text files as bytes. Their first bytes determine whether they are decompressed.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use system::{input, stand_in};

use crate::Error;

/// Number of bytes examined to determine a file's kind.
const FIRST: u64 = 512;
/// Number of bytes read at once.
const BUFFER: usize = 1 << 18;
/// First bytes of files that are not plain text, with the names of their formats.
const KINDS: [(&[u8], &str); 9] = [
    (GZIP, "compressed by gzip"),
    (ZSTANDARD, "compressed by Zstandard"),
    (PARQUET, "a Parquet file"),
    (b"\xFD7zXZ\0", "compressed by xz"),
    (b"BZh", "compressed by bzip2"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xBC\xAF\x27\x1C", "a 7z archive"),
    (b"\xFF\xFE", "UTF-16"),
    (b"\xFE\xFF", "UTF-16"),
];
const GZIP: &[u8] = &[0x1F, 0x8B];
const ZSTANDARD: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];
const PARQUET: &[u8] = b"PAR1";

/// Returns the format of a file with these first bytes, as in "a zip archive"; `None` for plain text.
#[must_use]
pub fn packing(first: &[u8]) -> Option<&'static str> {
    KINDS.iter().find(|(start, _)| first.starts_with(start)).map(|(_, name)| *name)
}

/// The contents of an open file.
pub(crate) enum Contents {
    /// Text, decompressed if needed.
    Text(Box<dyn BufRead>),
    Parquet(File),
}

impl Contents {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be read, or its format is not supported.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let unreadable = |source| Error::Unreadable { path: path.to_path_buf(), source };
        let file = input::open(path).map_err(unreadable)?;
        let (first, file) = first_bytes(file).map_err(unreadable)?;
        if first.starts_with(PARQUET) {
            return input::open(path).map(Self::Parquet).map_err(unreadable);
        }
        let (first, text): (Vec<u8>, Box<dyn Read>) = match decompressed(&first, file) {
            Ok(Unpacked::Plain(file)) => (first, file),
            Ok(Unpacked::Text(text)) => first_bytes(text).map_err(unreadable)?,
            Err(reason) => return Err(Error::WrongFile { path: path.to_path_buf(), reason }),
        };
        if let Some(reason) = stand_in::page(&first) {
            return Err(Error::WrongFile { path: path.to_path_buf(), reason: reason.to_owned() });
        }
        let whole = Cursor::new(first).chain(text);
        Ok(Self::Text(Box::new(BufReader::with_capacity(BUFFER, whole))))
    }
}

/// A file, decompressed if its first bytes show that it is compressed.
enum Unpacked {
    Plain(Box<dyn Read>),
    Text(Box<dyn Read>),
}

/// Reads the first bytes of `file`. Returns them, and the reader of the following bytes.
fn first_bytes<R: Read + 'static>(mut file: R) -> std::io::Result<(Vec<u8>, Box<dyn Read>)> {
    let mut first = Vec::new();
    file.by_ref().take(FIRST).read_to_end(&mut first)?;
    Ok((first, Box::new(file)))
}

/// Returns a file's contents, decompressed according to its `first` bytes.
///
/// # Errors
/// A sentence about a compression that this build lacks.
fn decompressed(first: &[u8], rest: Box<dyn Read>) -> Result<Unpacked, String> {
    let whole = || Cursor::new(first.to_vec());
    if first.starts_with(GZIP) {
        return Ok(Unpacked::Text(Box::new(MultiGzDecoder::new(whole().chain(rest)))));
    }
    if first.starts_with(ZSTANDARD) {
        return zstandard(Box::new(whole().chain(rest))).map(Unpacked::Text);
    }
    match packing(first) {
        Some(name) => {
            Err(format!("it is {name}: convert it to UTF-8, plain or compressed by gzip or Zstandard"))
        }
        None => Ok(Unpacked::Plain(rest)),
    }
}

#[cfg(feature = "parquet")]
fn zstandard(packed: Box<dyn Read>) -> Result<Box<dyn Read>, String> {
    let decoder = zstd::stream::read::Decoder::new(packed);
    Ok(Box::new(decoder.map_err(|error| format!("it cannot be decompressed: {error}"))?))
}

#[cfg(not(feature = "parquet"))]
fn zstandard(_packed: Box<dyn Read>) -> Result<Box<dyn Read>, String> {
    Err(LEFT_OUT.to_owned())
}

/// Error message for files whose readers are an optional feature.
pub const LEFT_OUT: &str = "this program was built without the readers of Parquet and Zstandard: build with \
                            `--features parquet`, or install the wheel, which has them";
