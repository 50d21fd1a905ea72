//! Encoding on the host, from values that arrive in consecutive pieces.

use device::parallel::{CHUNK, for_tasks};

use super::layout::{BLOCK, BlockCodes, GROUP, GROUP_BYTES, RowsPart};
use super::scale_code::scale_code;

/// The smallest scale whose reciprocal is finite.
const LEAST: f32 = 1e-38;

/// Encodes a matrix whose values arrive in order.
#[derive(Debug)]
pub struct Encoder<'a> {
    codes: &'a BlockCodes,
    record: Vec<u8>,
    scales: Vec<f32>,
    /// Number of elements encoded so far.
    done: usize,
}

impl<'a> Encoder<'a> {
    /// Starts the record of a matrix.
    #[must_use]
    pub fn new(codes: &'a BlockCodes) -> Self {
        let scales = vec![0.0; codes.elements() / BLOCK];
        Encoder { codes, record: vec![0; codes.bytes()], scales, done: 0 }
    }

    /// Encodes the next values, a whole number of blocks. Values beyond the end of the matrix are dropped.
    pub fn push(&mut self, values: &[f32]) {
        let alphabet = self.codes.alphabet();
        let first = self.codes.code_bytes(self.done);
        let codes = &mut self.record[first..self.codes.code_bytes(self.codes.elements())];
        let scales = &mut self.scales[self.done / BLOCK..];
        let pieces = values.chunks(CHUNK).zip(codes.chunks_mut(self.codes.code_bytes(CHUNK)));
        let pieces = pieces.zip(scales.chunks_mut(CHUNK / BLOCK)).collect();
        for_tasks(pieces, |((values, codes), scales): ((&[f32], &mut [u8]), &mut [f32])| {
            let blocks = values.chunks(BLOCK).zip(codes.chunks_mut(BLOCK * alphabet.bits() / 8));
            for ((values, codes), scale) in blocks.zip(scales) {
                let most = values.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
                *scale = most / alphabet.largest();
                alphabet.encode(values, 1.0 / scale.max(LEAST), codes);
            }
        });
        self.done += values.len();
    }

    /// Encodes the scales and returns the record.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        for part in self.codes.parts() {
            self.encode_scales(part);
        }
        self.record
    }

    fn encode_scales(&mut self, part: &RowsPart) {
        let blocks = part.elements.start / BLOCK..part.elements.end / BLOCK;
        let first_code = self.codes.scales() + blocks.start;
        let scales = &self.scales[blocks];
        let sum: f64 = scales.iter().map(|scale| f64::from(*scale)).sum();
        let mean = (sum / scales.len().max(1) as f64) as f32;
        for (number, scales) in scales.chunks(GROUP).enumerate() {
            let most = scales.iter().fold(0.0, |most: f32, scale| most.max((scale - mean).abs()));
            let inverse = 1.0 / most.max(LEAST);
            let codes = self.record[first_code + number * GROUP..].iter_mut();
            for (code, scale) in codes.zip(scales) {
                *code = scale_code().nearest(((scale - mean) * inverse).clamp(-1.0, 1.0));
            }
            let group = self.codes.groups() + (part.first_group + number) * GROUP_BYTES;
            self.record[group..group + 4].copy_from_slice(&most.to_le_bytes());
            self.record[group + 4..group + GROUP_BYTES].copy_from_slice(&mean.to_le_bytes());
        }
    }
}
