//! The file format of safetensors, as far as checkpoints need it: named f32 arrays, written and read in
//! pieces.
//!
//! Eight bytes of header length, little-endian; a JSON object of name → type, shape and range of bytes,
//! padded with spaces to a multiple of eight; the arrays, one after another, little-endian.
//! <https://github.com/huggingface/safetensors>

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::error::{CheckpointError, Result};
use crate::manifest::FileDigest;

/// Elements that are converted at a time.
pub(crate) const PIECE: usize = 1 << 16;
/// The most bytes that a header may have: what other readers of the format allow.
const MOST_HEADER: u64 = 100_000_000;
const F32: u64 = size_of::<f32>() as u64;

/// An array in a file: its name, its shape, and its byte range, counted from the end of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Range<u64>,
}

impl Entry {
    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        ((self.bytes.end - self.bytes.start) / F32) as usize
    }
}

/// Writes `values`, the elements of all entries one after another, and syncs the file. Returns its digest,
/// computed on the way.
pub(crate) fn write(path: &Path, entries: &[Entry], values: &[f32]) -> Result<FileDigest> {
    let failed = || CheckpointError::file(path, "write to it");
    let file = File::create_new(path).map_err(CheckpointError::file(path, "create it"))?;
    let mut out = Hashing { out: BufWriter::with_capacity(PIECE * 4, file), digest: Sha256::new(), bytes: 0 };
    out.write_all(&header(entries)).map_err(failed())?;
    let mut bytes = vec![0; PIECE * 4];
    for piece in values.chunks(PIECE) {
        for (slot, value) in bytes.chunks_exact_mut(4).zip(piece) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        out.write_all(&bytes[..piece.len() * 4]).map_err(failed())?;
    }
    let (mut file, digest) = out.finish();
    file.flush().map_err(failed())?;
    file.get_ref().sync_all().map_err(CheckpointError::file(path, "bring it to the disk"))?;
    Ok(digest)
}

fn header(entries: &[Entry]) -> Vec<u8> {
    let mut map = Map::new();
    map.insert("__metadata__".to_owned(), json!({ "format": "pt", "writer": "plimsoll" }));
    for Entry { name, shape, bytes } in entries {
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [bytes.start, bytes.end] });
        map.insert(name.clone(), entry);
    }
    let mut text = Value::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    header
}

/// A writer that counts and hashes the bytes that pass through it.
struct Hashing<W> {
    out: W,
    digest: Sha256,
    bytes: u64,
}

impl<W> Hashing<W> {
    fn finish(self) -> (W, FileDigest) {
        (self.out, FileDigest::new(self.bytes, self.digest))
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns the size and hash of a file, which is read once.
pub(crate) fn digest_of(path: &Path) -> Result<FileDigest> {
    let mut file = File::open(path).map_err(CheckpointError::file(path, "open it"))?;
    let mut hashing = Hashing { out: io::sink(), digest: Sha256::new(), bytes: 0 };
    let mut piece = vec![0; PIECE * 4];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(hashing.finish().1),
            // The sink takes everything.
            Ok(count) => hashing.write_all(&piece[..count]).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(CheckpointError::file(path, "read it")(error)),
        }
    }
}

/// Reads the header of a file: its arrays in the order of their bytes, and where those begin.
pub(crate) fn read_header(path: &Path) -> Result<(Vec<Entry>, u64)> {
    let mut file = File::open(path).map_err(CheckpointError::file(path, "open it"))?;
    let failed = || CheckpointError::file(path, "read its header");
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(failed())?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER {
        return Err(CheckpointError::damaged(path, format!("its header has {length} bytes")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(failed())?;
    let entries = entries_of(&text).map_err(|what| CheckpointError::damaged(path, what))?;
    Ok((entries, 8 + length))
}

fn entries_of(header: &[u8]) -> std::result::Result<Vec<Entry>, String> {
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
        let elements = described.shape.iter().try_fold(F32, |all, size| all.checked_mul(*size as u64));
        if described.dtype != "F32" || elements.is_none() || end.checked_sub(start) != elements {
            return Err(format!("its header: {name} is no f32 array of its shape"));
        }
        Ok(Entry { name, shape: described.shape, bytes: start..end })
    };
    let mut entries = map.into_iter().map(entry).collect::<std::result::Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| (entry.bytes.start, entry.bytes.end));
    Ok(entries)
}

/// Arrays of an open file.
pub(crate) struct Arrays<'a> {
    path: &'a Path,
    file: File,
    data: u64,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl<'a> Arrays<'a> {
    /// Opens the file whose arrays begin at byte `data`.
    pub(crate) fn open(path: &'a Path, data: u64) -> Result<Self> {
        let file = File::open(path).map_err(CheckpointError::file(path, "open it"))?;
        Ok(Arrays { path, file, data, bytes: Vec::new(), values: Vec::new() })
    }

    /// Passes the range `elements` of an array to `take`, piece by piece, each with the index of its first
    /// element in the range.
    pub(crate) fn read<E: From<CheckpointError>>(
        &mut self,
        entry: &Entry,
        elements: Range<usize>,
        mut take: impl FnMut(usize, &[f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let start = self.data + entry.bytes.start + F32 * elements.start as u64;
        self.file.seek(SeekFrom::Start(start)).map_err(CheckpointError::file(self.path, "seek in it"))?;
        for first in (0..elements.len()).step_by(PIECE) {
            let len = PIECE.min(elements.len() - first);
            self.bytes.resize(len * 4, 0);
            self.file.read_exact(&mut self.bytes).map_err(CheckpointError::file(self.path, "read it"))?;
            self.values.clear();
            let words = self.bytes.as_chunks::<4>().0;
            self.values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
            take(first, &self.values)?;
        }
        Ok(())
    }
}
