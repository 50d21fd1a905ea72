//! The arrays of a checkpoint, in one file or in several files with an index.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use device::DType;

use crate::error::{CheckpointError, Result};
use crate::format::{self, Entry, OpenFile};
use crate::index::{INDEX, Index, IndexedArray};
use crate::manifest::{Manifest, STATE};

/// A contiguous range of an array's elements in a file.
#[derive(Clone, Debug)]
struct Stored {
    /// Index of the first element within the whole array.
    first: usize,
    elements: usize,
    file: usize,
    /// File offset of the first element in bytes.
    position: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct StoredArray {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The ranges of the array, in element order.
    parts: Vec<Stored>,
}

impl StoredArray {
    pub(crate) fn elements(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first + part.elements)
    }
}

/// The files that hold a checkpoint's arrays.
#[derive(Clone, Debug)]
pub(crate) struct StateFiles {
    list: PathBuf,
    files: Vec<PathBuf>,
    arrays: BTreeMap<String, StoredArray>,
}

impl StateFiles {
    /// Opens the arrays in `directory`, whose files have been checked against `manifest`.
    pub(crate) fn open(directory: &Path, manifest: &Manifest) -> Result<Self> {
        if !manifest.is_single() {
            let index = Index::read(directory)?;
            // A file that the manifest does not name has not been verified.
            let is_unknown = |name: &&String| !manifest.files().any(|known| known == *name);
            if let Some(name) = index.files.iter().find(is_unknown) {
                return Err(CheckpointError::damaged(&directory.join(name), "its manifest does not name it"));
            }
            return Self::of_index(directory, index);
        }
        let path = directory.join(STATE);
        let (entries, data) = format::read_header(&path)?;
        let array = |entry: Entry| {
            let elements = entry.elements();
            let part = Stored { first: 0, elements, file: 0, position: data + entry.bytes.start };
            (entry.name, StoredArray { dtype: entry.dtype, shape: entry.shape, parts: vec![part] })
        };
        Ok(StateFiles {
            list: path.clone(),
            files: vec![path],
            arrays: entries.into_iter().map(array).collect(),
        })
    }

    fn of_index(directory: &Path, index: Index) -> Result<Self> {
        let list = directory.join(INDEX);
        let files: Vec<_> = index.files.iter().map(|name| directory.join(name)).collect();
        let headers = files.iter().map(|path| Header::read(path)).collect::<Result<Vec<_>>>()?;
        let array = |(name, array): (String, IndexedArray)| {
            let located = located(&name, &array, &headers);
            located.map(|array| (name, array)).map_err(|what| CheckpointError::damaged(&list, what))
        };
        let arrays = index.arrays.into_iter().map(array).collect::<Result<_>>()?;
        Ok(StateFiles { list, files, arrays })
    }

    /// Returns the path of the file that lists the arrays, for messages.
    pub(crate) fn list(&self) -> &Path {
        &self.list
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str)
    }

    pub(crate) fn array(&self, name: &str) -> Result<&StoredArray> {
        let missing = || CheckpointError::damaged(&self.list, format!("it has no {name}"));
        self.arrays.get(name).ok_or_else(missing)
    }
}

/// The header of one of several files.
struct Header {
    entries: BTreeMap<String, Entry>,
    data: u64,
}

impl Header {
    fn read(path: &Path) -> Result<Self> {
        let (entries, data) = format::read_header(path)?;
        let entries = entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        Ok(Header { entries, data })
    }
}

/// Locates the ranges of an array, which are contiguous in each file.
fn located(name: &str, array: &IndexedArray, headers: &[Header]) -> std::result::Result<StoredArray, String> {
    let wrong = || format!("{name} is not in the files as it says");
    let dtype = array.dtype().ok_or_else(wrong)?;
    let mut used: BTreeMap<usize, u64> = BTreeMap::new();
    let mut parts = Vec::new();
    for (file, first, elements) in array.parts.iter().copied() {
        let header = headers.get(file).ok_or_else(wrong)?;
        let entry = header.entries.get(name).filter(|entry| entry.dtype == dtype).ok_or_else(wrong)?;
        let used = used.entry(file).or_default();
        let position = header.data + entry.bytes.start + *used;
        *used += (elements * dtype.bytes()) as u64;
        parts.push(Stored { first, elements, file, position });
    }
    let is_whole = |(file, used): (&usize, &u64)| {
        let bytes = &headers[*file].entries[name].bytes;
        bytes.end - bytes.start == *used
    };
    if !used.iter().all(is_whole) {
        return Err(wrong());
    }
    parts.sort_unstable_by_key(|part| part.first);
    Ok(StoredArray { dtype, shape: array.shape.clone(), parts })
}

/// Reads ranges of arrays. Keeps one file open at a time.
pub(crate) struct Ranges<'a> {
    files: &'a StateFiles,
    open: Option<(usize, OpenFile<'a>)>,
}

impl<'a> Ranges<'a> {
    pub(crate) fn new(files: &'a StateFiles) -> Self {
        Ranges { files, open: None }
    }

    /// Reads the range `elements` of an array, and passes it to `take` in chunks. Each chunk comes with the
    /// index of its first element within the range. Reads no other bytes.
    pub(crate) fn read<E: From<CheckpointError>>(
        &mut self,
        array: &StoredArray,
        elements: Range<usize>,
        mut take: impl FnMut(usize, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let size = array.dtype.bytes();
        let before = array.parts.partition_point(|part| part.first + part.elements <= elements.start);
        for part in array.parts[before..].iter().take_while(|part| part.first < elements.end) {
            let first = part.first.max(elements.start);
            let end = (part.first + part.elements).min(elements.end);
            let position = part.position + (size * (first - part.first)) as u64;
            let file = self.file(part.file)?;
            file.read(position, size, end - first, |at, piece| take(first - elements.start + at, piece))?;
        }
        Ok(())
    }

    fn file(&mut self, number: usize) -> Result<&mut OpenFile<'a>> {
        let open = match self.open.take().filter(|(open, _)| *open == number) {
            Some(open) => open,
            None => (number, OpenFile::open(&self.files.files[number])?),
        };
        Ok(&mut self.open.insert(open).1)
    }
}
