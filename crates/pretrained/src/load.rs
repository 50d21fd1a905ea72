//! Reads the tensors of a folder into parameters or their shards.

use std::fs::File;
use std::ops::Range;

use checkpoint::Target;
use device::DType;
use nn::FolderTensor;
use system::file_error::FileContext;

use crate::error::Result;
use crate::tensor_file::StoredTensor;

/// Number of elements read at a time if the file stores them in the parameter's order.
const PIECE: usize = 1 << 18;
/// Number of elements of a transposed matrix held at a time. Large, so that reads are few and contiguous.
const BLOCK: usize = 1 << 22;

/// Reads `stored` into the elements of `target` that `tensor` covers.
pub(crate) fn load(tensor: &FolderTensor, stored: &StoredTensor, target: &Target) -> Result<()> {
    let [rows, columns] = tensor.rows_and_columns();
    let first = tensor.first_row * columns;
    let wanted = target.first..target.first + target.tensor.elements();
    let start = wanted.start.max(first);
    let end = wanted.end.min(first + rows * columns);
    if start >= end {
        return Ok(());
    }
    let path = stored.path();
    let file = system::input::open(path).context(path, "open it")?;
    let mut bytes = Vec::new();
    let mut put = |at: usize, values: &[f32]| -> Result<()> {
        bytes.resize(DType::F32.bytes() * values.len(), 0);
        bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
        Ok(target.take(first + at - target.first, &bytes)?)
    };
    let elements = start - first..end - first;
    if tensor.counter {
        return Ok(target.take(0, &stored.read_count(&file)?.to_le_bytes())?);
    }
    if tensor.transposed {
        return each_transposed(tensor, stored, &file, elements, &mut put);
    }
    let mut values = Vec::new();
    for at in elements.clone().step_by(PIECE) {
        values.resize(PIECE.min(elements.end - at), 0.0);
        stored.read(&file, at..at + values.len(), &mut values)?;
        put(at, &values)?;
    }
    Ok(())
}

type Put<'a> = &'a mut dyn FnMut(usize, &[f32]) -> Result<()>;

/// Reads a range of elements of matrices that are stored transposed, and passes them to `put` in chunks. Each
/// chunk comes with the index of its first element.
fn each_transposed(
    tensor: &FolderTensor,
    stored: &StoredTensor,
    file: &File,
    elements: Range<usize>,
    put: Put<'_>,
) -> Result<()> {
    let [count, rows, columns] = tensor.matrices();
    let size = rows * columns;
    if count == 1 && !tensor.interleaved {
        return transposed(stored, file, [rows, columns], elements, put);
    }
    let mut read = vec![0.0; size];
    let mut matrix = vec![0.0; size];
    for first in (0..count).map(|index| index * size) {
        let start = elements.start.max(first);
        let end = elements.end.min(first + size);
        if start >= end {
            continue;
        }
        stored.read(file, first..first + size, &mut read)?;
        for (at, value) in matrix.iter_mut().enumerate() {
            *value = read[at % columns * rows + tensor.position(at / columns, rows)];
        }
        put(start, &matrix[start - first..end - first])?;
    }
    Ok(())
}

/// Does the work of [`each_transposed`] for one matrix, a few rows at a time.
fn transposed(
    stored: &StoredTensor,
    file: &File,
    [rows, columns]: [usize; 2],
    elements: Range<usize>,
    put: Put<'_>,
) -> Result<()> {
    let height = (BLOCK / columns).max(1);
    let last = elements.end.div_ceil(columns);
    let mut block = Vec::new();
    let mut line = Vec::new();
    for top in (elements.start / columns..last).step_by(height) {
        let height = height.min(last - top);
        block.resize(height * columns, 0.0);
        line.resize(height, 0.0);
        for column in 0..columns {
            let at = column * rows + top;
            stored.read(file, at..at + height, &mut line)?;
            for (row, value) in line.iter().enumerate() {
                block[row * columns + column] = *value;
            }
        }
        let whole = top * columns..(top + height) * columns;
        let start = whole.start.max(elements.start);
        let end = whole.end.min(elements.end);
        put(start, &block[start - whole.start..end - whole.start])?;
    }
    Ok(())
}
