//! Decoding on the host.

use std::ops::Range;

use device::Float;
use device::parallel::for_pieces;

use super::layout::{GROUP_BYTES, Part};
use super::scale_code::scale_code;
use super::{BLOCK, BlockCodes, GROUP};

/// Elements of a group.
const PIECE: usize = BLOCK * GROUP;

/// Decodes a whole record.
pub(super) fn decode<T: Float>(record: &[u8], codes: &BlockCodes, matrix: &mut [T]) {
    for run in codes.runs() {
        for_pieces(&mut matrix[run.elements.clone()], PIECE, |index, values| {
            let mut wide = [0.0; PIECE];
            let wide = &mut wide[..values.len()];
            codes.decode_group(record, &run, index, wide);
            T::round(wide, values);
        });
    }
}

impl BlockCodes {
    /// Decodes some elements of a record: those of `range`, whose ends are multiples of [`BLOCK`].
    #[must_use]
    pub fn decode_on_host(&self, record: &[u8], range: Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; range.len()];
        let mut piece = vec![0.0; PIECE];
        for run in self.runs() {
            let (first, end) = (range.start.max(run.elements.start), range.end.min(run.elements.end));
            if first >= end {
                continue;
            }
            let groups = first - run.elements.start..end - run.elements.start;
            for group in groups.start / PIECE..groups.end.div_ceil(PIECE) {
                let start = run.elements.start + group * PIECE;
                let length = PIECE.min(run.elements.end - start);
                self.decode_group(record, &run, group, &mut piece[..length]);
                let (first, end) = (first.max(start), end.min(start + length));
                let own = &piece[first - start..end - start];
                values[first - range.start..end - range.start].copy_from_slice(own);
            }
        }
        values
    }

    /// Decodes group number `index` of a run.
    fn decode_group(&self, record: &[u8], run: &Part, index: usize, values: &mut [f32]) {
        let first = run.elements.start + index * PIECE;
        let group = self.groups() + (run.first_group + index) * GROUP_BYTES;
        let word = |at: usize| f32::from_le_bytes(std::array::from_fn(|byte| record[at + byte]));
        let [most, mean] = [word(group), word(group + 4)];
        let codes = &record[self.code_bytes(first)..self.code_bytes(first + values.len())];
        let scales = &record[self.scales() + first / BLOCK..];
        let blocks = values.chunks_mut(BLOCK).zip(codes.chunks(self.code_bytes(BLOCK)));
        for ((values, codes), scale) in blocks.zip(scales) {
            let scale = scale_code().fractions[usize::from(*scale)] * most + mean;
            self.alphabet().decode(codes, scale, values);
        }
    }
}
