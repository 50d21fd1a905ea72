//! A corpus: any number of files, mapped and read as one text.

use crate::mapping::map;
use crate::{Error, files};
use memmap2::Mmap;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Text files as one sequence of bytes, never copied as a whole: the operating system brings in the
/// pages that are read and drops them when memory is short, so a corpus may be larger than memory.
///
/// **Files must not be changed or truncated while a corpus is open**: the bytes read would change with them,
/// and reading beyond a new, earlier end ends the process. [`Corpus::check`] finds a file that was, before it
/// is read; a change between the two is not seen. Each file that is not empty takes one mapping, of which
/// Linux allows 65,530 by default (`vm.max_map_count`).
#[derive(Debug)]
pub struct Corpus {
    parts: Vec<Part>,
    length: u64,
}

#[derive(Debug)]
struct Part {
    /// Position of the first byte in the corpus.
    start: u64,
    bytes: Bytes,
    file: Option<(PathBuf, Mark)>,
}

/// Metadata that an unchanged file keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Mark {
    fn of(path: &Path) -> std::io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Mark { inode: metadata.ino(), length: metadata.len(), modified })
    }
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapping) => mapping,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl Corpus {
    /// Opens the files that `patterns` name, relative to `base`: sorted by path whatever the order of the
    /// patterns, each file once, concatenated with nothing between. Files without a byte are skipped, but
    /// a pattern that names nothing else is an error.
    ///
    /// # Errors
    /// No pattern at all; a glob that is wrong or matches no file; a file that is missing, no regular file,
    /// unreadable; a pattern whose files are all empty. Each names the pattern or the path.
    pub fn open(base: &Path, patterns: &[String]) -> Result<Self, Error> {
        let mut mapped: HashMap<PathBuf, Option<Mmap>> = HashMap::new();
        let mut all = Vec::new();
        for pattern in patterns {
            let found = files::matching(base, pattern)?;
            let mut bytes = false;
            for path in &found {
                if !mapped.contains_key(path) {
                    mapped.insert(path.clone(), map(path)?);
                }
                bytes |= mapped.get(path).is_some_and(Option::is_some);
            }
            if !bytes {
                return Err(Error::Empty { pattern: pattern.clone() });
            }
            all.extend(found);
        }
        let files = files::sorted_once(all).into_iter();
        Self::join(files.filter_map(|path| {
            let mapping = mapped.remove(&path).flatten()?;
            Some((Some(path), Bytes::Mapped(mapping)))
        }))
    }

    /// A corpus of bytes that are in memory already.
    ///
    /// # Errors
    /// [`Error::NoPaths`] if there are none.
    pub fn in_memory(bytes: Vec<u8>) -> Result<Self, Error> {
        Self::join(Some(bytes).filter(|bytes| !bytes.is_empty()).map(|bytes| (None, Bytes::Owned(bytes))))
    }

    fn join(pieces: impl IntoIterator<Item = (Option<PathBuf>, Bytes)>) -> Result<Self, Error> {
        let mut corpus = Self { parts: Vec::new(), length: 0 };
        for (path, bytes) in pieces {
            let marked = |path: PathBuf| match Mark::of(&path) {
                Ok(mark) => Ok((path, mark)),
                Err(source) => Err(Error::Unreadable { path, source }),
            };
            let part = Part { start: corpus.length, bytes, file: path.map(marked).transpose()? };
            corpus.length = corpus.length.checked_add(part.bytes().len() as u64).ok_or(Error::TooLong)?;
            corpus.parts.push(part);
        }
        if corpus.parts.is_empty() { Err(Error::NoPaths) } else { Ok(corpus) }
    }

    /// Bytes in all files together. Never zero.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a corpus is never empty: opening refuses it")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The files that hold at least one byte, in corpus order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| part.file.as_ref().map(|(path, _)| path.as_path()))
    }

    /// Looks whether the files of `range` are as they were when the corpus was opened. One that was removed
    /// or replaced is: what is mapped is the old one.
    ///
    /// # Errors
    /// [`Error::Changed`] names a file that was written to or cut short.
    pub fn check(&self, range: Range<u64>) -> Result<(), Error> {
        let first = self.parts.partition_point(|part| part.start <= range.start).saturating_sub(1);
        let touched =
            self.parts.get(first..).unwrap_or_default().iter().take_while(|part| part.start < range.end);
        for (path, mark) in touched.filter_map(|part| part.file.as_ref()) {
            match Mark::of(path) {
                Ok(now) if now != *mark && now.inode == mark.inode => {
                    let (before, now) = (mark.length, now.length);
                    return Err(Error::Changed { path: path.clone(), before, now });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The bytes of `range` (cut to the corpus), file by file, without copying.
    #[must_use]
    pub fn pieces(&self, range: Range<u64>) -> Pieces<'_> {
        let first = self.parts.partition_point(|part| part.start <= range.start).saturating_sub(1);
        Pieces { parts: self.parts.get(first..).unwrap_or_default(), range }
    }

    /// The SHA-256 of all bytes in corpus order, in hexadecimal. Names and borders of files do not enter:
    /// only what is read does. Reads the whole corpus once, in pieces.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for part in &self.parts {
            hash.update(part.bytes());
        }
        format!("{:x}", hash.finalize())
    }
}

/// The bytes of a range of a [`Corpus`], one slice for each file that it touches; never an empty slice.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    parts: &'a [Part],
    range: Range<u64>,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let (part, rest) = self.parts.split_first()?;
            if part.start >= self.range.end {
                return None;
            }
            self.parts = rest;
            let bytes = part.bytes();
            // Both are at most the length of a slice, so the conversions lose nothing.
            let from = self.range.start.saturating_sub(part.start).min(bytes.len() as u64) as usize;
            let to = (self.range.end - part.start).min(bytes.len() as u64) as usize;
            if from < to {
                return Some(&bytes[from..to]);
            }
        }
    }
}
