//! Keys and values that several layers use.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use autograd::{BlockIndex, Placement, Tape, Var, Weight, map, ops};
use collective::Axis;
use tensor::ops::attention::Heads;

use crate::error::{NnError, Result};
use crate::shards::Shards;

/// Index of the column dimension in `[batch, time, columns]`.
const COLUMNS: usize = 2;

/// Keys and values of the last layer that computed them, from its forward pass until the last layer that uses
/// them; one variable for each shard and piece. Clones refer to the same variables.
#[derive(Clone, Debug, Default)]
pub struct SharedKeyValues(Rc<RefCell<BTreeMap<Index, Var>>>);

/// Indices of a shard and a piece.
type Index = (usize, Option<usize>);

/// The role of a layer among layers that share keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValueRole {
    /// Computes the keys and values.
    Source,
    /// Uses the keys and values that a source computed.
    Reader {
        /// Whether this is the last layer that uses them, so that they are freed after it.
        is_last: bool,
    },
}

impl SharedKeyValues {
    /// Keeps the keys and values of packed `qkv_blc`, one block of `heads`.
    pub(super) fn keep(&self, tape: &Tape, block: BlockIndex, qkv_blc: &Var, heads: Heads) -> Result<()> {
        let [queries, keys, values] = heads.groups_of_columns();
        let key_values_blc = ops::slice(tape, qkv_blc.clone(), COLUMNS, queries, keys + values)?;
        self.0.borrow_mut().insert((block.shard, block.piece), key_values_blc);
        Ok(())
    }

    /// Appends the keys and values of a block to its queries.
    pub(super) fn append(
        &self,
        tape: &Tape,
        block: BlockIndex,
        queries_blc: Var,
        is_last: bool,
    ) -> Result<Var> {
        let index = (block.shard, block.piece);
        let kept = match is_last {
            true => self.0.borrow_mut().remove(&index),
            false => self.0.borrow().get(&index).cloned(),
        };
        Ok(ops::concatenate(tape, &[queries_blc, kept.ok_or_else(missing)?], COLUMNS)?)
    }

    /// Keeps the keys and values of an earlier stage, whose `rows` are divided like the residual stream.
    /// `columns` counts one shard, and `time` is the number of positions of a sequence or piece.
    pub(super) fn arrive(
        &self,
        tape: &Tape,
        rows: Var,
        (shards, columns, time): (Shards, usize, usize),
    ) -> Result<()> {
        map(tape, [rows], |block, [rows]| {
            let shape = rows.tensor().shape();
            let rows = rows.with_placement(Axis::Tensor, Placement::Replicate);
            let parts = match shards.is_divided() {
                true => {
                    let all = columns * shards.here;
                    let all_blc =
                        ops::reshape(tape, rows.clone(), [shape.elements() / (time * all), time, all])?;
                    ops::split(tape, all_blc, COLUMNS, &vec![columns; shards.here])?
                }
                false => vec![rows.clone()],
            };
            let indexed = parts.into_iter().enumerate().map(|(shard, part)| ((shard, block.piece), part));
            self.0.borrow_mut().extend(indexed);
            Ok::<_, NnError>(rows)
        })?;
        Ok(())
    }

    /// Removes the keys and values of a piece, and returns them as further columns of `rows`, the piece's
    /// local rows of the residual stream.
    pub(super) fn leave(&self, tape: &Tape, piece: Option<usize>, rows: &Var) -> Result<Var> {
        let shards: Vec<Var> = {
            let mut kept = self.0.borrow_mut();
            let of_piece: Vec<Index> = kept.keys().filter(|index| index.1 == piece).copied().collect();
            of_piece.iter().filter_map(|index| kept.remove(index)).collect()
        };
        let all_blc = match &shards[..] {
            [] => return Err(missing()),
            [one] => one.clone(),
            _ => ops::concatenate(tape, &shards, COLUMNS)?,
        };
        let of_rows = rows.tensor().shape();
        let columns = all_blc.tensor().shape().elements() / of_rows.rows();
        let all_blc = all_blc.with_placement(Axis::Tensor, rows.placement(Axis::Tensor));
        Ok(match *of_rows.dims() {
            [batch, time, _] => ops::reshape(tape, all_blc, [batch, time, columns])?,
            _ => ops::reshape(tape, all_blc, [of_rows.rows(), columns])?,
        })
    }
}

fn missing() -> NnError {
    NnError::Sizes("a layer shares keys and values that no layer computed".to_owned())
}

/// Normalises every head of `queries_blc`.
pub(super) fn norm_queries(
    tape: &Tape,
    queries_blc: Var,
    heads: Heads,
    (weight, epsilon): &(Weight, f32),
) -> Result<Var> {
    let shape = queries_blc.tensor().shape();
    let x = ops::reshape(tape, queries_blc, [shape.rows() * heads.query, heads.width])?;
    let x = ops::rms_norm(tape, x, weight, *epsilon)?;
    Ok(ops::reshape(tape, x, shape)?)
}
