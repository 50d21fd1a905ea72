//! Changes of a value's placement.

use collective::Axis;

use super::placement::{Dimension, Placement};
use super::sequence::{join_pieces, split_pieces, sum_pieces};
use super::var::Var;
use crate::error::{AutogradError, Result};
use crate::ops;
use crate::tape::Tape;

impl Var {
    /// Changes the placement along `axis`; returns the value unchanged if it already has that placement.
    ///
    /// Along [`Axis::Context`], partial pieces become [`Placement::Replicate`] as their sum. Other pieces
    /// become one block of all local rows, and such a block can be split into pieces again. Without pieces,
    /// the value is unchanged. Along [`Axis::Tensor`], columns become [`Placement::Replicate`];
    /// [`Var::copied`] and [`Var::summed`] are the changes at the edges of a sharded layer.
    ///
    /// # Errors
    /// Another change was requested, memory is exhausted, or a collective failed.
    pub fn redistribute(self, tape: &Tape, axis: Axis, to: Placement) -> Result<Self> {
        let from = self.placement(axis);
        match (axis, from, to) {
            _ if from == to => Ok(self),
            (Axis::Context, Placement::Partial, Placement::Replicate) => {
                sum_pieces(tape, self.into_blocks().collect())
            }
            (Axis::Context, _, Placement::Replicate) => {
                let joined =
                    self.each_shard(tape, |shard| join_pieces(tape, shard.into_blocks().collect()))?;
                Ok(joined.with_placement(axis, to))
            }
            (Axis::Context, Placement::Replicate, Placement::Shard(_)) => {
                if tape.pieces().is_none() {
                    return Ok(self);
                }
                let pieces = self.each_shard(tape, |shard| {
                    let pieces = Var::from_blocks(split_pieces(tape, shard)?);
                    pieces.ok_or(AutogradError::NotRecorded)
                })?;
                Ok(pieces.with_placement(axis, to))
            }
            (Axis::Tensor, Placement::Shard(Dimension::Columns { shards }), Placement::Replicate) => {
                let joined = self.by_piece(tape, |parts| join_columns(tape, parts, shards))?;
                Ok(joined.with_placement(axis, to))
            }
            _ => Err(AutogradError::Placement { axis: axis.name(), from, to }),
        }
    }
}

/// Concatenates the columns of all `shards` shards; `parts` are the local ones.
fn join_columns(tape: &Tape, parts: Vec<Var>, shards: usize) -> Result<Var> {
    let shape = parts.first().ok_or(AutogradError::NotRecorded)?.tensor().shape();
    let rows = shape.rows();
    let columns = shape.columns();
    let flat = parts.into_iter().map(|part| ops::reshape(tape, part, [rows, columns]));
    let flat = flat.collect::<Result<Vec<_>>>()?;
    let all = ops::all_gather(tape, ops::concatenate(tape, &flat, 0)?, Axis::Tensor)?;
    let all = ops::transpose(tape, ops::reshape(tape, all, [shards, rows, columns])?, 0, 1)?;
    let joined = shape.with(shape.dims().len() - 1, shards * columns).unwrap_or(shape);
    ops::reshape(tape, all, joined)
}
