//! The layout of a record.

use std::ops::Range;

use super::alphabet::Alphabet;
use crate::Shape;

/// Elements that share a scale.
pub const BLOCK: usize = 64;
/// Blocks whose scales form a group, encoded with a scale and mean of their own.
pub const GROUP: usize = 256;
/// Byte alignment of a record's sections, and of its length.
const ALIGNMENT: usize = 16;
/// Bytes that describe a group: the scale of its scales and their mean, both f32.
pub(super) const GROUP_BYTES: usize = 8;

/// Layout of a quantised matrix (a record): codes, then scales, then groups of scales.
///
/// Rows may belong to parts that are quantised independently, as separate matrices would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCodes {
    alphabet: Alphabet,
    shape: Shape,
    parts: Vec<RowsPart>,
}

/// Consecutive elements that are grouped independently of other parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowsPart {
    /// Range of elements, both ends multiples of [`BLOCK`].
    pub(super) elements: Range<usize>,
    /// Number of groups in earlier parts.
    pub(super) first_group: usize,
}

impl RowsPart {
    fn groups(&self) -> usize {
        self.elements.len().div_ceil(BLOCK * GROUP)
    }
}

impl BlockCodes {
    /// Describes a matrix of this shape. `rows` has the number of rows of each part.
    ///
    /// # Errors
    /// The number of elements of a part, if it is no multiple of [`BLOCK`].
    pub fn new(alphabet: Alphabet, shape: impl Into<Shape>, rows: &[usize]) -> Result<Self, usize> {
        let shape = shape.into();
        let mut parts = Vec::new();
        let mut first = 0;
        let mut first_group = 0;
        for rows in rows {
            let elements = rows * shape.columns();
            if !elements.is_multiple_of(BLOCK) {
                return Err(elements);
            }
            let part = RowsPart { elements: first..first + elements, first_group };
            (first, first_group) = (first + elements, first_group + part.groups());
            parts.push(part);
        }
        Ok(BlockCodes { alphabet, shape, parts })
    }

    /// Returns the shape of the matrix.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the number of elements of the matrix.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    pub(super) fn alphabet(&self) -> Alphabet {
        self.alphabet
    }

    pub(super) fn parts(&self) -> &[RowsPart] {
        &self.parts
    }

    /// Returns the parts, joining neighbours where the last group of the first is full.
    pub(super) fn runs(&self) -> Vec<RowsPart> {
        let mut runs: Vec<RowsPart> = Vec::new();
        for part in &self.parts {
            match runs.last_mut().filter(|run| run.elements.len().is_multiple_of(BLOCK * GROUP)) {
                Some(run) => run.elements.end = part.elements.end,
                None => runs.push(part.clone()),
            }
        }
        runs
    }

    pub(super) fn code_bytes(&self, elements: usize) -> usize {
        elements * self.alphabet.bits() / 8
    }

    pub(super) fn scales(&self) -> usize {
        self.code_bytes(self.elements()).next_multiple_of(ALIGNMENT)
    }

    /// Returns the offset of the groups in bytes.
    pub(super) fn groups(&self) -> usize {
        (self.scales() + self.elements() / BLOCK).next_multiple_of(ALIGNMENT)
    }

    /// Returns the length of the record in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let groups: usize = self.parts.iter().map(RowsPart::groups).sum();
        (self.groups() + groups * GROUP_BYTES).next_multiple_of(ALIGNMENT)
    }
}
