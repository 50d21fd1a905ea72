//! Decoding of records on the host.

use device::Float;
use device::parallel::for_pieces;

use super::layout::{BLOCK, BlockCodes, GROUP, GROUP_BYTES, RowsPart};
use super::scale_code::scale_code;

/// Elements of a group.
const PIECE: usize = BLOCK * GROUP;

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
    /// Decodes a record in host memory to f32.
    #[must_use]
    pub fn decode_on_host(&self, record: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        decode(record, self, &mut values);
        values
    }

    /// Decodes group number `index` of a run.
    fn decode_group(&self, record: &[u8], run: &RowsPart, index: usize, values: &mut [f32]) {
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
