//! The file `state.safetensors.index.json`: the files of a checkpoint that several ranks wrote, and the
//! elements of each array in each file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use device::DType;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use system::file_error::FileContext;
use system::{fail_point, input};

use crate::error::{CheckpointError, Result};
use crate::format::{LOSSES, dtype_of, type_name};
use crate::manifest::FileDigest;

pub(crate) const INDEX: &str = "state.safetensors.index.json";
/// Maximum size of the file in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// A contiguous range of an array's elements in one file: (file index, first element, number of elements).
pub type FileRange = (usize, usize, usize);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IndexedArray {
    /// Element type, named as in the files.
    dtype: String,
    pub(crate) shape: Vec<usize>,
    /// Ranges of elements, in byte order within each file.
    pub(crate) parts: Vec<FileRange>,
}

/// The arrays of a checkpoint and the files that hold them. Every element is in exactly one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    pub(crate) files: Vec<String>,
    pub(crate) arrays: BTreeMap<String, IndexedArray>,
}

impl Index {
    /// Returns an index without arrays for a checkpoint of `files` files.
    pub fn new(files: usize) -> Self {
        let files = (0..files).map(|number| file_name(number, files)).collect();
        Index { files, arrays: BTreeMap::new() }
    }

    /// Adds an array whose elements are stored in `parts`.
    pub fn add(&mut self, name: String, dtype: DType, shape: &[usize], parts: Vec<FileRange>) {
        let array = IndexedArray { dtype: type_name(dtype), shape: shape.to_vec(), parts };
        self.arrays.insert(name, array);
    }

    /// Adds the array of `losses` losses, which rank 0 writes.
    pub fn add_losses(&mut self, losses: usize) {
        let parts = if losses > 0 { vec![(0, 0, losses)] } else { Vec::new() };
        self.add(LOSSES.to_owned(), DType::F32, &[losses], parts);
    }

    /// Writes the index file in `directory` and syncs it.
    pub(crate) fn write(&self, directory: &Path) -> Result<FileDigest> {
        let path = directory.join(INDEX);
        let (text, digest) = self.encode();
        let mut file = File::create_new(&path).context(&path, "create it")?;
        file.write_all(&text).context(&path, "write to it")?;
        fail_point::reach("checkpoint index written");
        file.sync_all().context(&path, "bring it to the disk")?;
        Ok(digest)
    }

    pub(crate) fn encode(&self) -> (Vec<u8>, FileDigest) {
        // Serializing numbers, strings and maps of strings does not fail.
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        let digest = FileDigest::new(text.len() as u64, Sha256::new_with_prefix(&text));
        (text, digest)
    }

    /// Reads the index file in `directory`.
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(INDEX);
        let text = input::read(&path, MOST_BYTES).context(&path, "read it")?;
        let index: Index = serde_json::from_slice(&text)
            .map_err(|error| CheckpointError::damaged(&path, format!("it is corrupted: {error}")))?;
        for (name, array) in &index.arrays {
            let complete = array.check(index.files.len());
            complete.map_err(|what| CheckpointError::damaged(&path, format!("{name}: {what}")))?;
        }
        Ok(index)
    }
}

impl IndexedArray {
    pub(crate) fn dtype(&self) -> Option<DType> {
        dtype_of(&self.dtype)
    }

    /// Checks that every element is stored exactly once, in one of `files` files.
    fn check(&self, files: usize) -> std::result::Result<(), String> {
        if self.dtype().is_none() {
            return Err(format!("its type {} is not known", self.dtype));
        }
        let mut parts = self.parts.clone();
        parts.sort_unstable_by_key(|(_, first, _)| *first);
        let mut end = 0usize;
        for (file, first, elements) in parts {
            if file >= files {
                return Err(format!("it is in file {file} of {files}"));
            }
            if first != end || elements == 0 {
                return Err(format!("{elements} elements begin at {first} and not at {end}"));
            }
            end = end.checked_add(elements).ok_or("it has too many elements")?;
        }
        let elements = self.shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        match elements == Some(end) {
            true => Ok(()),
            false => Err(format!("its files have {end} elements of the shape {:?}", self.shape)),
        }
    }
}

/// Returns the name of array file `number`, counted from 0, of `files`.
pub(crate) fn file_name(number: usize, files: usize) -> String {
    format!("state-{:05}-of-{files:05}.safetensors", number + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_one_file() {
        let table: [(&[FileRange], Option<&str>); 7] = [
            (&[(0, 0, 6)], None),
            (&[(1, 4, 2), (0, 0, 4)], None),
            (&[(0, 0, 4)], Some("its files have 4 elements of the shape [2, 3]")),
            (&[(0, 0, 4), (1, 3, 3)], Some("3 elements begin at 3 and not at 4")),
            (&[(0, 0, 3), (1, 4, 2)], Some("2 elements begin at 4 and not at 3")),
            (&[(2, 0, 6)], Some("it is in file 2 of 2")),
            (&[(0, 0, 6), (1, 6, usize::MAX)], Some("it has too many elements")),
        ];
        for (parts, refused) in table {
            let array = IndexedArray { dtype: "F32".to_owned(), shape: vec![2, 3], parts: parts.to_vec() };
            assert_eq!(array.check(2).err().as_deref(), refused, "{parts:?}");
        }
    }

    #[test]
    fn an_index_is_read_as_written() {
        let mut index = Index::new(2);
        index.add("w".to_owned(), DType::Bf16, &[2, 3], vec![(0, 0, 4), (1, 4, 2)]);
        let directory = tempfile::tempdir().unwrap();
        index.write(directory.path()).unwrap();
        assert_eq!(Index::read(directory.path()).unwrap(), index);
        let expected = concat!(
            r#"{"files":["state-00001-of-00002.safetensors","state-00002-of-00002.safetensors"],"#,
            r#""arrays":{"w":{"dtype":"BF16","shape":[2,3],"parts":[[0,0,4],[1,4,2]]}}}"#,
            "\n"
        );
        assert_eq!(std::fs::read_to_string(directory.path().join(INDEX)).unwrap(), expected);
    }
}
