//! Formats of token files, recognised by their headers.

use std::cmp::Ordering;

use system::numbers::grouped;
use system::stand_in;

use crate::Error;
use crate::data_file::DataFile;

/// Bytes in the header of an llm.c shard: 256 integers of 32 bits.
pub const HEADER_BYTES: usize = 1024;

/// The magic number and version in a format's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first integer of the file.
    pub magic: u32,
    /// The second integer of the file.
    pub version: u32,
}

/// How a file encodes tokens: little-endian, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Text, in which each byte is a token.
    Bytes,
    /// 16 bits per token, no header: nanoGPT's `train.bin`.
    Raw16,
    /// 16 bits per token after a header: llm.c's and modded-nanogpt's shards.
    Shard16,
    /// 32 bits per token after a header: llm.c's shards for vocabularies beyond 16 bits.
    Shard32,
}

impl Encoding {
    /// Returns the bytes per token.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Self::Bytes => 1,
            Self::Raw16 | Self::Shard16 => 2,
            Self::Shard32 => 4,
        }
    }

    /// Returns the header that files begin with; `None` without one.
    #[must_use]
    pub const fn header(self) -> Option<Header> {
        match self {
            Self::Bytes | Self::Raw16 => None,
            Self::Shard16 => Some(Header { magic: 20_240_520, version: 1 }),
            Self::Shard32 => Some(Header { magic: 20_240_801, version: 7 }),
        }
    }

    /// Returns the file offset of the first token in bytes.
    pub(crate) const fn offset(self) -> u64 {
        if self.header().is_some() { HEADER_BYTES as u64 } else { 0 }
    }

    /// Decodes the tokens in `bytes` to `out`, which has one element per token.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [u32]) {
        match self {
            Self::Bytes => out.iter_mut().zip(bytes).for_each(|(token, byte)| *token = u32::from(*byte)),
            Self::Raw16 | Self::Shard16 => {
                let words = bytes.as_chunks::<2>().0;
                out.iter_mut().zip(words).for_each(|(token, word)| *token = u16::from_le_bytes(*word).into());
            }
            Self::Shard32 => {
                let words = bytes.as_chunks::<4>().0;
                out.iter_mut().zip(words).for_each(|(token, word)| *token = u32::from_le_bytes(*word));
            }
        }
    }
}

/// Returns the encoding of a token file, and its number of tokens.
///
/// # Errors
/// The header has another format, the count contradicts the file's length, the file ends within a token, or
/// there are no tokens.
pub(crate) fn recognise(file: &DataFile) -> Result<(Encoding, u64), Error> {
    let refused = |reason: String| Error::BadShard { path: file.path().to_path_buf(), reason };
    let mut start = [0; 16];
    let length = start.len().min(usize::try_from(file.len()).unwrap_or(usize::MAX));
    file.read_at(0, &mut start[..length])?;
    if let Some(sentence) = stand_in::page(&start) {
        return Err(refused(sentence.to_owned()));
    }
    let [magic, version, count] =
        [0, 4, 8].map(|at| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]));
    let of_magic = |encoding: &Encoding| encoding.header().is_some_and(|header| header.magic == magic);
    let (encoding, tokens) = match [Encoding::Shard16, Encoding::Shard32].into_iter().find(of_magic) {
        Some(encoding) => {
            check_header(file, encoding, version, count).map_err(refused)?;
            (encoding, u64::from(count))
        }
        None if is_magic(magic, version) || is_counted(file.len(), count) => {
            let text = format!("its magic number {magic} (version {version}) is none of a token shard");
            return Err(refused(text));
        }
        None if !file.len().is_multiple_of(2) => {
            let text = format!(
                "it has no header, and {} bytes are no whole number of 16-bit tokens",
                grouped(file.len())
            );
            return Err(refused(text));
        }
        None => (Encoding::Raw16, file.len() / 2),
    };
    if tokens == 0 { Err(refused("it has no tokens".to_owned())) } else { Ok((encoding, tokens)) }
}

fn check_header(file: &DataFile, encoding: Encoding, version: u32, count: u32) -> Result<(), String> {
    let expected = encoding.header().map_or(0, |header| header.version);
    if version != expected {
        return Err(format!("its version is {version}, and this reads version {expected}"));
    }
    let needed = encoding.offset() + u64::from(count) * encoding.width() as u64;
    let truncated = match file.len().cmp(&needed) {
        Ordering::Less => "it is truncated: ",
        Ordering::Equal => return Ok(()),
        Ordering::Greater => "",
    };
    let [count, needed, length] = [u64::from(count), needed, file.len()].map(grouped);
    Err(format!(
        "{truncated}its header counts {count} tokens, which take {needed} bytes, and it has {length}"
    ))
}

/// Returns whether a file of `length` bytes has `count` tokens after a header.
fn is_counted(length: u64, count: u32) -> bool {
    let tokens =
        [Encoding::Shard16, Encoding::Shard32].map(|encoding| u64::from(count) * encoding.width() as u64);
    tokens.into_iter().any(|bytes| bytes > 0 && length == HEADER_BYTES as u64 + bytes)
}

/// Returns whether two integers look like magic number and version of an llm.c file: a date from 2023 to
/// 2029, and a small number.
fn is_magic(magic: u32, version: u32) -> bool {
    (20_230_101..=20_291_231).contains(&magic) && version <= 16
}
