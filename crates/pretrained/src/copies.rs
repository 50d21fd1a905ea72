//! Tensors that a folder holds a second time, as a head that is tied to the table of embeddings.

use std::path::Path;

use nn::TiedHead;
use system::file_error::FileContext;

use crate::error::Result;
use crate::folder::Folder;
use crate::tensor_file::StoredTensor;

/// Elements that are compared at a time.
const PIECE: usize = 1 << 18;

/// Returns whether the folder at `path` holds a head that differs from the table of embeddings. Reads both.
///
/// # Errors
/// Errors of [`Folder::open`]; a file that cannot be read.
pub fn has_own_head(path: &Path, tied: &TiedHead) -> Result<bool> {
    differs(&Folder::open(path)?, (tied.head, tied.embedding), tied.prefix)
}

/// Returns whether a folder holds both tensors with other values.
pub(crate) fn differs(folder: &Folder, (copy, of): (&str, &str), prefix: &str) -> Result<bool> {
    match (folder.find(copy, prefix), folder.find(of, prefix)) {
        (Some((_, copy)), Some((_, of))) => Ok(copy.shape() != of.shape() || !is_equal(copy, of)?),
        _ => Ok(false),
    }
}

fn is_equal(one: &StoredTensor, other: &StoredTensor) -> Result<bool> {
    let open = |tensor: &StoredTensor| system::input::open(tensor.path()).context(tensor.path(), "open it");
    let files = [open(one)?, open(other)?];
    let elements: usize = one.shape().iter().product();
    let mut values = [vec![0.0; PIECE.min(elements)], vec![0.0; PIECE.min(elements)]];
    for first in (0..elements).step_by(PIECE) {
        let range = first..(first + PIECE).min(elements);
        for ((tensor, file), values) in [one, other].into_iter().zip(&files).zip(&mut values) {
            values.truncate(range.len());
            tensor.read(file, range.clone(), values)?;
        }
        if values[0].iter().zip(&values[1]).any(|(one, other)| one.to_bits() != other.to_bits()) {
            return Ok(false);
        }
    }
    Ok(true)
}
