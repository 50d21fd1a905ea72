//! The layout of a record.

use std::ops::Range;

use super::alphabet::Alphabet;
use crate::Shape;

/// Elements that share a scale.
pub const BLOCK: usize = 64;
/// Blocks whose scales share a scale.
pub const GROUP: usize = 256;
/// Bytes of which sections of a record, and records, are multiples.
const ALIGNMENT: usize = 16;
/// Bytes of a group: the scale of its scales and their mean, in f32.
pub(super) const GROUP_BYTES: usize = 8;

/// The description of a matrix that is kept as a record: codes, scales, and groups of scales, one section
/// after the other.
///
/// The rows of a matrix may be parts with scales of their own, as of separate matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCodes {
    alphabet: Alphabet,
    shape: Shape,
    parts: Vec<Part>,
}

/// Elements whose scales have one mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The elements, multiples of [`BLOCK`].
    pub(super) elements: Range<usize>,
    /// Number of groups before the part's.
    pub(super) first_group: usize,
}

impl Part {
    fn groups(&self) -> usize {
        self.elements.len().div_ceil(BLOCK * GROUP)
    }
}

impl BlockCodes {
    /// Describes a matrix of this shape whose parts have these numbers of rows.
    ///
    /// # Errors
    /// The number of elements of a part that is no multiple of [`BLOCK`].
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
            let part = Part { elements: first..first + elements, first_group };
            (first, first_group) = (first + elements, first_group + part.groups());
            parts.push(part);
        }
        Ok(BlockCodes { alphabet, shape, parts })
    }

    /// Shape of the matrix.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of the matrix's elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    pub(super) fn alphabet(&self) -> Alphabet {
        self.alphabet
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the parts, neighbours joined where the groups of the first are full.
    pub(super) fn runs(&self) -> Vec<Part> {
        let mut runs: Vec<Part> = Vec::new();
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

    /// First byte of the groups.
    pub(super) fn groups(&self) -> usize {
        (self.scales() + self.elements() / BLOCK).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of the record.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let groups: usize = self.parts.iter().map(Part::groups).sum();
        (self.groups() + groups * GROUP_BYTES).next_multiple_of(ALIGNMENT)
    }
}
