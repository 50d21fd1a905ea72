//! Inputs and targets of the modules that predict later tokens.
//!
//! Module n reads the n-th token after each position, and predicts the target of that token. A target counts
//! if the token is in the document of the position and its own target counts.

use data::{ArrayShape, HostArray, HostData, HostType, IGNORED, MicroBatch};

use crate::error::Result;

/// An array of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaterArray {
    /// The tokens that the module reads; 0 beyond the sequence.
    Inputs,
    /// The tokens that the module predicts.
    Targets,
}

impl LaterArray {
    /// Returns the array of the module that predicts the `distance`-th token after the next one.
    ///
    /// # Errors
    /// The micro-batch has no tokens.
    pub(crate) fn values(self, batch: &MicroBatch, distance: usize) -> Result<HostArray> {
        let array = if self == LaterArray::Inputs { &batch.inputs } else { &batch.targets };
        let shape = array.shape.clone();
        if let HostData::Shape(_) = array.data {
            return Ok(ArrayShape { extents: shape, values: HostType::U32 }.without_values());
        }
        let time = shape.last().copied().unwrap_or(1).max(1);
        let tokens = array.tokens()?;
        let documents = batch.documents.as_ref().map(HostArray::tokens).transpose()?;
        let later = |index: usize| {
            let other = index + distance;
            let is_within = index % time + distance < time;
            let is_alike = documents.is_none_or(|starts| starts.get(index) == starts.get(other));
            match self {
                LaterArray::Inputs => tokens.get(other).copied().filter(|_| is_within).unwrap_or(0),
                LaterArray::Targets => {
                    tokens.get(other).copied().filter(|_| is_within && is_alike).unwrap_or(IGNORED)
                }
            }
        };
        let values = (0..tokens.len()).map(later).collect();
        Ok(HostArray { shape, data: HostData::U32(values) })
    }
}

#[cfg(test)]
mod tests {
    use data::{HostArray, HostData, IGNORED, MicroBatch};

    use super::LaterArray;

    fn array(values: &[u32]) -> HostArray {
        HostArray { shape: vec![2, 4], data: HostData::U32(values.to_vec()) }
    }

    /// Starts of documents, the distance, and the expected inputs and targets.
    type Row<'a> = (Option<&'a [u32]>, usize, [u32; 8], [u32; 8]);

    #[test]
    fn tokens_and_targets_move_within_their_document() {
        let none = IGNORED;
        let inputs = array(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let targets = array(&[2, 3, 4, 50, 6, none, 8, 90]);
        let table: [Row<'_>; 4] = [
            (None, 1, [2, 3, 4, 0, 6, 7, 8, 0], [3, 4, 50, none, none, 8, 90, none]),
            (None, 2, [3, 4, 0, 0, 7, 8, 0, 0], [4, 50, none, none, 8, 90, none, none]),
            (
                Some(&[0, 0, 2, 2, 0, 0, 0, 3]),
                1,
                [2, 3, 4, 0, 6, 7, 8, 0],
                [3, none, 50, none, none, 8, none, none],
            ),
            (None, 4, [0; 8], [none; 8]),
        ];
        for (starts, distance, read, predicted) in table {
            let documents = starts.map(array);
            let batch = MicroBatch {
                inputs: inputs.clone(),
                targets: targets.clone(),
                documents,
                ..MicroBatch::default()
            };
            for (kind, expected) in [(LaterArray::Inputs, read), (LaterArray::Targets, predicted)] {
                assert_eq!(kind.values(&batch, distance).unwrap(), array(&expected), "{starts:?} {distance}");
            }
        }
    }
}
