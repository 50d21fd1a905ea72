//! A corpus: files read as one sequence of tokens.

use crate::data_file::DataFile;
use crate::encoding::{self, Encoding};
use crate::progress::Progress;
use crate::records::packing;
use crate::{Error, files};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use system::numbers::hexadecimal;

/// Number of bytes read at once when a whole file is read.
const BLOCK: usize = 1 << 20;

/// Files read as one sequence of tokens: text, where each byte is a token, or token shards.
///
/// Files are read by position and never copied as a whole, so a corpus may be larger than memory, and opening
/// it reads only headers. If a file is written or truncated while the corpus is open, its next read fails.
#[derive(Debug)]
pub struct Corpus {
    parts: Vec<CorpusFile>,
    length: u64,
}

#[derive(Debug)]
struct CorpusFile {
    /// Position of the first token within the corpus.
    start: u64,
    tokens: u64,
    encoding: Encoding,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    File(DataFile),
    Owned(Vec<u8>),
}

impl CorpusFile {
    /// Fills `out` with the bytes of tokens, starting at token `from` of the file.
    fn read_bytes(&self, from: u64, out: &mut [u8]) -> Result<(), Error> {
        let offset = self.encoding.offset() + from * self.encoding.width() as u64;
        match &self.bytes {
            Bytes::File(file) => file.read_at(offset, out),
            Bytes::Owned(bytes) => {
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                if let Some(held) = bytes.get(offset..offset.saturating_add(out.len())) {
                    out.copy_from_slice(held);
                }
                Ok(())
            }
        }
    }

    fn path(&self) -> Option<&Path> {
        match &self.bytes {
            Bytes::File(file) => Some(file.path()),
            Bytes::Owned(_) => None,
        }
    }
}

impl Corpus {
    /// Opens the text files matched by `patterns`, relative to `base`. They are sorted by path, each included
    /// once, and concatenated without separators. Empty files are skipped, but a pattern that matches only
    /// empty files is an error.
    ///
    /// # Errors
    /// There is no pattern; a glob is invalid or matches no file; a file is missing, not regular or
    /// unreadable; or all files of a pattern are empty. Each error names the pattern or path.
    pub fn open(base: &Path, patterns: &[String]) -> Result<Self, Error> {
        let mut opened: HashMap<PathBuf, DataFile> = HashMap::new();
        let mut all = Vec::new();
        for pattern in patterns {
            let paths = files::matching(base, pattern)?;
            let mut bytes = 0;
            for path in &paths {
                let file = match opened.remove(path) {
                    Some(file) => file,
                    None => DataFile::open(path)?,
                };
                bytes += file.len();
                opened.insert(path.clone(), file);
            }
            if bytes == 0 {
                return Err(Error::Empty { pattern: pattern.clone() });
            }
            all.extend(paths);
        }
        let parts = files::sorted_once(all).into_iter().filter_map(|path| opened.remove(&path));
        Self::join(parts.filter(|file| file.len() > 0).map(|file| {
            let tokens = file.len();
            let encoding = Encoding::Bytes;
            CorpusFile { start: 0, tokens, encoding, bytes: Bytes::File(file) }
        }))
    }

    /// Opens the token shards matched by `patterns`, as [`Corpus::open`] does texts. Each file's header
    /// determines its format.
    ///
    /// # Errors
    /// Errors of [`Corpus::open`]; [`Error::BadShard`] names a file with an invalid header, an invalid
    /// length, or no tokens.
    pub fn open_shards(base: &Path, patterns: &[String]) -> Result<Self, Error> {
        let parts = files::files(base, patterns)?.into_iter().map(|path| {
            let file = DataFile::open(&path)?;
            let (encoding, tokens) = encoding::recognise(&file)?;
            Ok(CorpusFile { start: 0, tokens, encoding, bytes: Bytes::File(file) })
        });
        Self::join(parts.collect::<Result<Vec<_>, Error>>()?)
    }

    /// Returns a corpus of a text in memory.
    ///
    /// # Errors
    /// [`Error::NoPaths`] if it is empty.
    pub fn in_memory(bytes: Vec<u8>) -> Result<Self, Error> {
        let tokens = bytes.len() as u64;
        let encoding = Encoding::Bytes;
        let part =
            (tokens > 0).then_some(CorpusFile { start: 0, tokens, encoding, bytes: Bytes::Owned(bytes) });
        Self::join(part)
    }

    fn join(parts: impl IntoIterator<Item = CorpusFile>) -> Result<Self, Error> {
        let mut corpus = Self { parts: Vec::new(), length: 0 };
        for part in parts {
            let length = corpus.length.checked_add(part.tokens).ok_or(Error::TooLong)?;
            corpus.parts.push(CorpusFile { start: std::mem::replace(&mut corpus.length, length), ..part });
        }
        if corpus.parts.is_empty() { Err(Error::NoPaths) } else { Ok(corpus) }
    }

    /// Returns the number of tokens in all files; never zero.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a corpus is never empty: opening refuses it")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns the files with at least one token, in corpus order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(CorpusFile::path)
    }

    /// Returns the latest modification time of the files, in seconds since 1970; 0 in memory.
    #[must_use]
    pub fn modified(&self) -> i64 {
        let modified = |part: &CorpusFile| match &part.bytes {
            Bytes::File(file) => file.modified(),
            Bytes::Owned(_) => 0,
        };
        self.parts.iter().map(modified).max().unwrap_or(0)
    }

    /// Checks that text files are neither compressed nor Parquet.
    ///
    /// # Errors
    /// The first bytes of a file show that it is, or a file cannot be read.
    pub fn check_plain(&self) -> Result<(), Error> {
        for part in self.parts.iter().filter(|part| part.encoding == Encoding::Bytes) {
            let mut first = [0; 8];
            let first = &mut first[..usize::try_from(part.tokens).unwrap_or(8).min(8)];
            part.read_bytes(0, first)?;
            if let (Some(kind), Some(path)) = (packing(first), part.path()) {
                let reason = format!(
                    "it is {kind}, and text is read as it is: convert it to UTF-8, or make token shards by `plimsoll \
                     tokenize`, which reads .gz, .zst and .parquet"
                );
                return Err(Error::WrongFile { path: path.to_path_buf(), reason });
            }
        }
        Ok(())
    }

    /// Returns the position of each file's first token, in corpus order.
    pub fn starts(&self) -> impl Iterator<Item = u64> {
        self.parts.iter().map(|part| part.start)
    }

    /// Fills `out` with the tokens from position `start` on.
    ///
    /// # Errors
    /// [`Error::BeyondCorpus`] if there are fewer; a file has changed or cannot be read.
    pub fn read(&self, start: u64, out: &mut [u32]) -> Result<(), Error> {
        let mut buffer = Vec::new();
        let mut rest = out;
        for (part, range) in self.pieces(start, rest.len())? {
            let (own, others) = rest.split_at_mut((range.end - range.start) as usize);
            buffer.resize(own.len() * part.encoding.width(), 0);
            part.read_bytes(range.start, &mut buffer)?;
            part.encoding.decode(&buffer, own);
            rest = others;
        }
        Ok(())
    }

    /// Returns the file that contains the token at `position`, and the token's index in the file.
    pub(crate) fn locate(&self, position: u64) -> (PathBuf, u64) {
        let after = self.parts.partition_point(|part| part.start <= position);
        match self.parts.get(after.saturating_sub(1)) {
            Some(part) => (part.path().unwrap_or(Path::new("memory")).to_path_buf(), position - part.start),
            None => (PathBuf::new(), position),
        }
    }

    /// Returns the files that hold tokens `start..start + count`, each with the range of tokens in it.
    ///
    /// # Errors
    /// There are too few tokens.
    fn pieces(
        &self,
        start: u64,
        count: usize,
    ) -> Result<impl Iterator<Item = (&CorpusFile, Range<u64>)>, Error> {
        let end = start.checked_add(count as u64).filter(|end| *end <= self.length);
        let end = end.ok_or(Error::BeyondCorpus { start, count, tokens: self.length })?;
        let first = self.parts.partition_point(|part| part.start <= start).saturating_sub(1);
        let touched = self.parts[first..].iter().take_while(move |part| part.start < end);
        Ok(touched
            .map(move |part| (part, start.saturating_sub(part.start)..(end - part.start).min(part.tokens))))
    }

    /// Returns the hexadecimal SHA-256 of all tokens in corpus order, as the files encode them. Names,
    /// headers and file boundaries are not included. Reads the whole corpus once, in blocks, and logs
    /// progress.
    pub fn fingerprint(&self) -> Result<String, Error> {
        let mut hash = Sha256::new();
        let mut block = vec![0; BLOCK];
        let progress = Progress::begin("hashing the corpus", self.length, "tokens");
        for part in &self.parts {
            let width = part.encoding.width() as u64;
            let mut from = 0;
            while from < part.tokens {
                let count = (part.tokens - from).min(BLOCK as u64 / width);
                let bytes = &mut block[..(count * width) as usize];
                part.read_bytes(from, bytes)?;
                hash.update(bytes);
                from += count;
                progress.reached(part.start + from);
            }
        }
        Ok(hexadecimal(&hash.finalize()))
    }

    /// Passes the tokens of `range` to `see` in order, in blocks.
    pub fn scan(&self, range: Range<u64>, mut see: impl FnMut(&[u32])) -> Result<(), Error> {
        let mut block = vec![0; BLOCK.min(usize::try_from(range.end - range.start).unwrap_or(BLOCK))];
        let mut from = range.start;
        while from < range.end {
            let count = (range.end - from).min(block.len() as u64) as usize;
            self.read(from, &mut block[..count])?;
            see(&block[..count]);
            from += count as u64;
        }
        Ok(())
    }
}
