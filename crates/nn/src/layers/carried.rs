//! Values that stages send beside the residual stream: embeddings of tokens for layers of later stages, and
//! keys and values that these layers share.

use autograd::{Tape, Var, map, ops};

use super::{SharedKeyValues, within};
use crate::error::{NnError, Result};
use crate::shards::Shards;

/// The columns that a stage receives and sends after the residual stream.
#[derive(Debug)]
pub struct CarriedColumns {
    /// Width of the residual stream.
    pub width: usize,
    /// Width of a layer's embeddings of tokens; 0 for none.
    pub embedding: usize,
    /// Number of layers of the stage, and of all later stages.
    pub layers: [usize; 2],
    /// Keys and values of earlier stages that this stage or later stages use.
    pub arriving: Vec<CarriedKeyValues>,
    /// Keys and values that later stages use.
    pub leaving: Vec<CarriedKeyValues>,
    /// Shards of the layers.
    pub shards: Shards,
}

/// Keys and values that several stages use.
#[derive(Debug)]
pub struct CarriedKeyValues {
    /// The keys and values.
    pub values: SharedKeyValues,
    /// Number of columns in all shards.
    pub columns: usize,
    /// Whether they have the dtype of matmuls under autocast instead of f32.
    pub is_half: bool,
}

/// Embeddings of tokens for each layer of a stage, and for all later layers.
#[derive(Debug, Default)]
pub struct StageEmbeddings {
    /// An embedding for each layer of the stage.
    pub own: Vec<Var>,
    /// The columns of all later layers.
    pub later: Option<Var>,
}

impl CarriedColumns {
    /// Splits the embeddings of the first stage's layers and of all later ones.
    pub(crate) fn split_embeddings(&self, tape: &Tape, all_blc: Var) -> Result<StageEmbeddings> {
        let axis = last_axis(&all_blc);
        let parts = ops::split(tape, all_blc, axis, &self.embedding_columns())?;
        Ok(self.stage_embeddings(&mut parts.into_iter()))
    }

    /// Splits the previous stage's output into the residual stream and embeddings, and keeps keys and values.
    /// `time` is the number of positions of a sequence or piece.
    pub(crate) fn open(&self, tape: &Tape, hidden: Var, time: usize) -> Result<(Var, StageEmbeddings)> {
        let mut columns = vec![self.width];
        columns.extend(self.embedding_columns());
        let shared: usize = self.arriving.iter().map(|values| values.columns).sum();
        if columns.len() == 1 && shared == 0 {
            return Ok((hidden, StageEmbeddings::default()));
        }
        self.check_pass(tape, &self.arriving)?;
        // If rows are not divided over ranks, they have the columns of the local shards alone.
        let local = hidden.tensor().shape().columns().saturating_sub(columns.iter().sum());
        columns.extend(self.arriving.iter().map(|values| values.columns * local / shared));
        within(tape, "carried", || {
            let axis = last_axis(&hidden);
            let mut parts = ops::split(tape, hidden, axis, &columns)?.into_iter();
            let stream = parts.next().ok_or(NnError::NotLast)?;
            let embeddings = self.stage_embeddings(&mut parts);
            for (CarriedKeyValues { values, columns, is_half }, rows) in self.arriving.iter().zip(parts) {
                let dtype = tape.pass().autocast.as_ref().filter(|_| *is_half).map(|autocast| autocast.half);
                let rows = match dtype {
                    Some(dtype) => ops::cast(tape, rows, dtype)?,
                    None => rows,
                };
                values.arrive(tape, rows, (self.shards, columns / self.shards.all, time))?;
            }
            Ok((stream, embeddings))
        })
    }

    /// Adds to the stage's output what later stages need.
    pub(crate) fn close(&self, tape: &Tape, stream: Var, later: Option<Var>) -> Result<Var> {
        self.check_pass(tape, &self.leaving)?;
        within(tape, "carried", || {
            let axis = last_axis(&stream);
            let output = match later {
                Some(later) => ops::concatenate(tape, &[stream, later], axis)?,
                None => stream,
            };
            if self.leaving.is_empty() {
                return Ok(output);
            }
            map(tape, [output], |block, [rows]| {
                let mut parts = vec![rows.clone()];
                for CarriedKeyValues { values, .. } in &self.leaving {
                    parts.push(values.leave(tape, block.piece, &rows)?);
                }
                Ok(ops::concatenate(tape, &parts, axis)?)
            })
        })
    }

    /// Rejects keys and values of shards in a pass that computes all rows on each rank.
    fn check_pass(&self, tape: &Tape, values: &[CarriedKeyValues]) -> Result<()> {
        if values.is_empty() || tape.pass().cache.is_none() || !self.shards.is_divided() {
            return Ok(());
        }
        let text = "model.shared_layers: text is not generated with pipeline stages (parallel.pipeline) and \
                    tensor lanes (parallel.tensor_lanes) together";
        Err(NnError::Sizes(text.to_owned()))
    }

    /// Returns the columns of embeddings: of each layer of the stage, then of all later layers.
    fn embedding_columns(&self) -> Vec<usize> {
        let [own, later] = self.layers;
        let all = std::iter::repeat_n(self.embedding, own).chain([later * self.embedding]);
        all.filter(|columns| *columns > 0).collect()
    }

    fn stage_embeddings(&self, parts: &mut impl Iterator<Item = Var>) -> StageEmbeddings {
        let [own, later] = self.layers.map(|layers| if self.embedding > 0 { layers } else { 0 });
        let own = parts.take(own).collect();
        StageEmbeddings { own, later: if later > 0 { parts.next() } else { None } }
    }
}

/// Index of the dimension of columns. Rows that are sharded have no dimension of sequences.
fn last_axis(x: &Var) -> usize {
    x.tensor().shape().dims().len() - 1
}
