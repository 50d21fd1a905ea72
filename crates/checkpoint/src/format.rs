//! The part of the safetensors format that checkpoints use: named arrays of any element type, written and
//! read in chunks.
//!
//! A file has eight bytes with the header's length (little-endian), then a JSON object of name → type, shape
//! and byte range, padded with spaces to a multiple of eight. The little-endian arrays follow one after
//! another. <https://github.com/huggingface/safetensors>

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use device::DType;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use system::file_error::{FileContext, FileError};
use system::numbers::{grouped, megabytes_of};
use system::pace::Pace;
use system::{fail_point, input, threads};

use crate::error::{CheckpointError, Result};
use crate::manifest::FileDigest;

/// Name of the array of losses.
pub(crate) const LOSSES: &str = "run.losses";
/// Chunk size for hashing, writing and reading, in bytes; a multiple of every element's size.
const PIECE: usize = 1 << 18;
/// Maximum size of a header in bytes, the same as in other readers of the format.
const MOST_HEADER: u64 = 100_000_000;

// Arrays are copied as bytes between memory and files, which are little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// An array in a file: its name, element type and shape, and its byte range, counted from the end of the
/// header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Range<u64>,
}

impl Entry {
    pub(crate) fn elements(&self) -> usize {
        (self.bytes.end - self.bytes.start) as usize / self.dtype.bytes()
    }
}

/// Returns the name of an element type in the format, such as `BF16`.
pub(crate) fn type_name(dtype: DType) -> String {
    dtype.name().to_uppercase()
}

pub(crate) fn dtype_of(name: &str) -> Option<DType> {
    DType::ALL.iter().copied().find(|dtype| type_name(*dtype) == name)
}

/// Writes and syncs a file. `parts`, joined, are the arrays of all entries in order. Hashing runs
/// concurrently, because it takes as long as writing to a fast disk. `written` receives the number of bytes
/// after each chunk. Returns the size and hash of the file.
pub(crate) fn write(
    path: &Path,
    entries: &[Entry],
    parts: &[&[u8]],
    written: impl Fn(usize),
) -> Result<FileDigest> {
    let header = header(entries);
    let is_failed = AtomicBool::new(false);
    let digest = || {
        let mut digest = Sha256::new();
        let pieces = [&header[..]].into_iter().chain(pieces(parts));
        pieces.take_while(|_| !is_failed.load(Ordering::Relaxed)).for_each(|piece| digest.update(piece));
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        FileDigest::new((header.len() + bytes) as u64, digest)
    };
    thread::scope(|scope| {
        let hashing = threads::spawn_scoped(scope, digest);
        let outcome = write_synced(path, &header, parts, written);
        is_failed.store(outcome.is_err(), Ordering::Relaxed);
        outcome?;
        Ok(hashing.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(digest))
    })
}

/// Splits the parts into chunks for hashing and writing.
fn pieces<'a>(parts: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
    parts.iter().flat_map(|part| part.chunks(PIECE))
}

fn write_synced(path: &Path, header: &[u8], parts: &[&[u8]], written: impl Fn(usize)) -> Result<()> {
    let mut file = File::create_new(path).context(path, "create it")?;
    file.write_all(header).context(path, "write to it")?;
    let mut done = 0;
    for piece in pieces(parts) {
        file.write_all(piece).context(path, "write to it")?;
        fail_point::reach("checkpoint piece written");
        done += piece.len();
        written(done);
    }
    fail_point::reach("checkpoint state written");
    Ok(file.sync_all().context(path, "bring it to the disk")?)
}

fn header(entries: &[Entry]) -> Vec<u8> {
    let mut map = Map::new();
    map.insert("__metadata__".to_owned(), json!({ "format": "pt", "writer": "plimsoll" }));
    for Entry { name, dtype, shape, bytes } in entries {
        let entry =
            json!({ "dtype": type_name(*dtype), "shape": shape, "data_offsets": [bytes.start, bytes.end] });
        map.insert(name.clone(), entry);
    }
    let mut header = Value::Object(map);
    // The layout of earlier versions, whatever the order of the arrays.
    header.sort_all_objects();
    let mut text = header.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    header
}

/// Reads a file once and returns its size and hash.
pub(crate) fn digest_of(path: &Path) -> Result<FileDigest> {
    let mut file = input::open(path).context(path, "open it")?;
    let mut digest = Sha256::new();
    let mut bytes = 0;
    let all = file.metadata().context(path, "read its size")?.len();
    let mut piece = vec![0; PIECE];
    let pace = Pace::of_files();
    loop {
        fail_point::reach("checkpoint piece about to be checked");
        if pace.is_due() {
            tracing::info!("checking {}: {}", path.display(), megabytes_of(bytes, all));
        }
        match file.read(&mut piece) {
            Ok(0) => return Ok(FileDigest::new(bytes, digest)),
            Ok(count) => {
                digest.update(&piece[..count]);
                bytes += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(FileError { path: path.to_owned(), action: "read it", source }.into()),
        }
    }
}

/// Reads the header of a file. Returns its arrays in byte order, and the file offset of the first.
pub(crate) fn read_header(path: &Path) -> Result<(Vec<Entry>, u64)> {
    let mut file = input::open(path).context(path, "open it")?;
    let mut length = [0; 8];
    file.read_exact(&mut length).context(path, "write to it")?;
    let length = u64::from_le_bytes(length);
    let bytes = file.metadata().context(path, "write to it")?.len();
    if length > MOST_HEADER || length > bytes.saturating_sub(8) {
        let [bytes, length] = [bytes, length].map(grouped);
        let what = format!("it has {bytes} bytes, and its header says that it has {length} itself");
        return Err(CheckpointError::damaged(path, what));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).context(path, "write to it")?;
    let entries =
        entries_of(&text, bytes - 8 - length).map_err(|what| CheckpointError::damaged(path, what))?;
    Ok((entries, 8 + length))
}

/// Parses a header. Returns its arrays in byte order; they must fill the following `bytes` bytes without gap
/// or overlap.
fn entries_of(header: &[u8], bytes: u64) -> std::result::Result<Vec<Entry>, String> {
    #[derive(serde::Deserialize)]
    struct Described {
        dtype: String,
        shape: Vec<usize>,
        data_offsets: [u64; 2],
    }
    let mut map: Map<String, Value> =
        serde_json::from_slice(header).map_err(|error| format!("its header is no JSON object: {error}"))?;
    map.remove("__metadata__");
    let entry = |(name, value): (String, Value)| {
        let described: Described =
            serde_json::from_value(value).map_err(|error| format!("its header: {name}: {error}"))?;
        let [start, end] = described.data_offsets;
        let Some(dtype) = dtype_of(&described.dtype) else {
            return Err(format!("its header: {name} is of type {}, which is not known", described.dtype));
        };
        let element = dtype.bytes() as u64;
        let bytes = described.shape.iter().try_fold(element, |all, size| all.checked_mul(*size as u64));
        if bytes.is_none() || end.checked_sub(start) != bytes {
            return Err(format!("its header: {name} has not the bytes of its shape"));
        }
        Ok(Entry { name, dtype, shape: described.shape, bytes: start..end })
    };
    let mut entries = map.into_iter().map(entry).collect::<std::result::Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| (entry.bytes.start, entry.bytes.end));
    let mut end = 0;
    for Entry { name, bytes: own, .. } in &entries {
        if own.start != end {
            return Err(format!("its header: {name} begins at byte {} and not at {end}", own.start));
        }
        end = own.end;
    }
    if end != bytes {
        let [end, bytes] = [end, bytes].map(grouped);
        return Err(format!("its header: its arrays have {end} bytes, and {bytes} follow it"));
    }
    Ok(entries)
}

/// A file of arrays, open for reading.
pub(crate) struct OpenFile<'a> {
    path: &'a Path,
    file: File,
    bytes: Vec<u8>,
}

impl<'a> OpenFile<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self> {
        let file = input::open(path).context(path, "open it")?;
        Ok(OpenFile { path, file, bytes: Vec::new() })
    }

    /// Reads `elements` elements of `size` bytes each from file offset `position`, and passes them to `take`
    /// in chunks. Each chunk comes with the index of its first element.
    pub(crate) fn read<E: From<CheckpointError>>(
        &mut self,
        position: u64,
        size: usize,
        elements: usize,
        mut take: impl FnMut(usize, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.file
            .seek(SeekFrom::Start(position))
            .context(self.path, "seek in it")
            .map_err(CheckpointError::from)?;
        for first in (0..elements).step_by(PIECE / size) {
            self.bytes.resize((size * (elements - first)).min(PIECE), 0);
            fail_point::reach("checkpoint piece about to be read");
            self.file
                .read_exact(&mut self.bytes)
                .context(self.path, "read it")
                .map_err(CheckpointError::from)?;
            take(first, &self.bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a header of f32 arrays, each as (name, elements, byte range).
    fn header_of(arrays: &[(&str, u64, [u64; 2])]) -> Vec<u8> {
        let entry = |(name, elements, range): &(&str, u64, [u64; 2])| {
            let entry = json!({ "dtype": "F32", "shape": [elements], "data_offsets": range });
            ((*name).to_owned(), entry)
        };
        Value::Object(arrays.iter().map(entry).collect()).to_string().into_bytes()
    }

    #[test]
    fn arrays_fill_the_file_without_gap_or_overlap() {
        const END: u64 = u64::MAX - 3;
        type Case = (&'static [(&'static str, u64, [u64; 2])], u64, Option<&'static str>);
        let cases: [Case; 9] = [
            (&[("a", 2, [0, 8]), ("b", 1, [8, 12])], 12, None),
            (&[("b", 1, [8, 12]), ("none", 0, [8, 8]), ("a", 2, [0, 8])], 12, None),
            (&[], 0, None),
            (&[("a", 2, [0, 8]), ("b", 2, [4, 12])], 12, Some("b begins at byte 4 and not at 8")),
            (&[("a", 1, [0, 4]), ("b", 1, [8, 12])], 12, Some("b begins at byte 8 and not at 4")),
            (&[("a", 2, [0, 8])], 12, Some("its arrays have 8 bytes, and 12 follow it")),
            (&[("a", 2, [0, 8])], 4, Some("its arrays have 8 bytes, and 4 follow it")),
            // Added to the preceding bytes, this range wraps around to the start of the file.
            (&[("a", 1, [END - 4, END])], 4, Some("a begins at byte")),
            (&[("a", 2, [8, 0])], 8, Some("a has not the bytes of its shape")),
        ];
        for (arrays, bytes, refused) in cases {
            match (entries_of(&header_of(arrays), bytes), refused) {
                (Ok(entries), None) => assert_eq!(entries.len(), arrays.len()),
                (Err(message), Some(words)) => assert!(message.contains(words), "{arrays:?}: {message}"),
                (result, _) => panic!("{arrays:?}: {result:?}"),
            }
        }
    }
}
