//! Tensors stored twice in a folder, such as an output head tied to the token embeddings.

use std::path::Path;

use nn::TiedHead;
use system::file_error::FileContext;

use crate::error::Result;
use crate::folder::Folder;
use crate::tensor_file::StoredTensor;

/// Number of elements compared at a time.
const PIECE: usize = 1 << 18;

/// Returns whether the folder at `path` stores an output head that differs from the token embeddings. Reads
/// both.
///
/// # Errors
/// Errors of [`Folder::open`], or a file cannot be read.
pub fn has_own_head(path: &Path, tied: &TiedHead) -> Result<bool> {
    differs(&Folder::open(path)?, (tied.head, tied.embedding), tied.prefix)
}

/// Returns whether a folder stores both tensors and their values differ.
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
