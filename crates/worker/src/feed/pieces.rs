//! The sequence shards that a context-parallel rank computes, and their arrays.

use autograd::{Pieces, SequencePiece};
use collective::{Axis, RankGrid};
use config::RunConfig;
use data::{ArrayShape, HostArray, HostData, IGNORED};
use device::{DType, Device};
use tensor::Tensor;

use crate::error::{Result, WorkerError};
use crate::feed::arrays::upload;

/// The sequence shards that a rank computes.
#[derive(Clone, Debug)]
pub(crate) struct ContextPieces {
    /// Number of shards of each sequence, on all ranks.
    all: usize,
    /// Indices of this rank's shards, in the order in which they are computed.
    here: Vec<usize>,
    /// Whether gradients and losses of context ranks are added in the same tree as lanes.
    joins_lanes: bool,
}

impl ContextPieces {
    /// Returns the shards of a rank; `None` if sequences are not split.
    pub(crate) fn from_config(config: &RunConfig, grid: &RankGrid) -> Option<Self> {
        let all = config.parallel.context_lanes;
        let each = all / grid.size(Axis::Context).max(1);
        let dealt = Pieces::dealt(all).into_iter();
        let here = dealt.skip(grid.coordinate(Axis::Context) * each).take(each).collect();
        let joins_lanes = config.parallel.gradient_parts() > 1;
        (all > 1).then_some(ContextPieces { all, here, joins_lanes })
    }

    /// Returns the shape of this rank's shards of an array `[sequences, time]`: `[shards · sequences, time of
    /// a shard]`.
    fn shape(&self, array: &ArrayShape) -> Result<ArrayShape> {
        let [sequences, time] = extents(&array.extents)?;
        if !time.is_multiple_of(self.all) {
            let text = format!("parallel.context_lanes = {}: it does not divide {time} tokens", self.all);
            return Err(WorkerError::Refused(text));
        }
        let extents = vec![self.here.len() * sequences, time / self.all];
        Ok(ArrayShape { extents, values: array.values })
    }

    /// Returns the values of this rank's shards of an array.
    fn values(&self, array: &HostArray) -> Result<HostArray> {
        let all = ArrayShape { extents: array.shape.clone(), values: array.data.values() };
        let [_, time] = extents(&array.shape)?;
        if let HostData::Shape(_) = array.data {
            return Ok(self.shape(&all)?.without_values());
        }
        let tokens = array.tokens()?;
        let each = time / self.all;
        let of_piece = |number: &usize| {
            let rows = tokens.chunks_exact(time);
            let first = number * each;
            rows.flat_map(move |row| row[first..first + each].iter().copied()).collect::<Vec<_>>()
        };
        let values = self.here.iter().flat_map(of_piece).collect();
        let shape = self.shape(&all)?.extents;
        Ok(HostArray { shape, data: HostData::U32(values) })
    }

    /// Copies this rank's shards of a token array to the device.
    pub(crate) fn upload(&self, device: &Device, array: &HostArray) -> Result<Tensor> {
        upload(device, &self.values(array)?, DType::F32)
    }

    /// Returns, for each shard, its fraction of the targets that are not ignored.
    pub(crate) fn shares(&self, targets: &HostArray) -> Result<Vec<f32>> {
        let [_, time] = extents(&targets.shape)?;
        if let HostData::Shape(_) = targets.data {
            return Ok(vec![1.0 / self.all as f32; self.here.len()]);
        }
        let tokens = targets.tokens()?;
        let each = time / self.all;
        let count = |row: &[u32]| row.iter().filter(|target| **target != IGNORED).count();
        let counted = count(tokens).max(1) as f64;
        let of_piece = |number: &usize| {
            let rows = tokens.chunks_exact(time);
            rows.map(|row| count(&row[number * each..][..each])).sum::<usize>() as f64 / counted
        };
        Ok(self.here.iter().map(|number| of_piece(number) as f32).collect())
    }

    /// Returns the shards for a pass over sequences of shape `inputs`. `documents` has the document starts of
    /// whole sequences, if attention is masked by documents. `shares` are the loss weights, needed only by
    /// the last stage. `trains`: whether the pass is a training pass.
    pub(crate) fn of_pass(
        &self,
        device: &Device,
        inputs: &ArrayShape,
        (documents, masks_documents): (Option<&HostArray>, bool),
        shares: Option<Vec<f32>>,
        trains: bool,
    ) -> Result<Pieces> {
        let starts = upload(device, &self.starts(inputs, documents)?, DType::F32)?;
        let parts = self.here.len();
        let shape = starts.shape();
        let [sequences, time] = [shape.rows() / parts, shape.columns()];
        let piece = |(index, number): (usize, &usize)| -> Result<SequencePiece> {
            let documents = Some(starts.view(index * sequences * time, [sequences, time])?);
            let share = shares.as_ref().map_or(1.0 / self.all as f32, |shares| shares[index]);
            Ok(SequencePiece { number: *number, share, documents })
        };
        let here = self.here.iter().enumerate().map(piece).collect::<Result<_>>()?;
        let sums_over_ranks = !(trains && self.joins_lanes);
        Ok(Pieces { all: self.all, here, sums_over_ranks, masks_documents })
    }

    /// Returns the start of each token's document, relative to the first position of its shard, modulo 2³².
    fn starts(&self, inputs: &ArrayShape, documents: Option<&HostArray>) -> Result<HostArray> {
        let mut starts = match documents {
            Some(documents) => self.values(documents)?,
            None => {
                let shape = self.shape(inputs)?.extents;
                let zeros = vec![0; shape.iter().product()];
                HostArray { shape, data: HostData::U32(zeros) }
            }
        };
        let [rows, each] = extents(&starts.shape)?;
        if let HostData::U32(values) = &mut starts.data {
            let pieces = values.chunks_exact_mut(rows / self.here.len() * each);
            for (piece, number) in pieces.zip(&self.here) {
                piece.iter_mut().for_each(|start| *start = start.wrapping_sub((number * each) as u32));
            }
        }
        Ok(starts)
    }
}

/// Returns (number of sequences, tokens per sequence).
fn extents(extents: &[usize]) -> Result<[usize; 2]> {
    extents.try_into().map_err(|_| {
        let text = "parallel.context_lanes divides sequences of tokens, and examples are none";
        WorkerError::Refused(text.to_owned())
    })
}
