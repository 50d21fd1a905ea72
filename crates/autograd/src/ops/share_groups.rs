//! Columns of B and C of state spaces whose groups of heads are shared by several shards.
//!
//! Each shard has equal parts of the columns, like all other columns. Before the scan, a shard gathers the
//! columns of its group. Backward adds the gradients of all shards that read a column.

use device::{Category, DType, Request};
use tensor::ops::state_space_scan::StateHeads;
use tensor::ops::{cast, rearrange};
use tensor::{Shape, Tensor};

use super::cast::autocast_all;
use super::named;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, TensorRanks, Var, joined};
use crate::tape::Tape;

const OPERATOR: &str = "share_groups";
/// Index of the column dimension.
const COLUMNS: usize = 2;

/// Backward of [`share_groups`].
#[derive(Debug)]
pub struct ShareGroupsRule {
    groups: SharedGroups,
    ranks: TensorRanks,
}

/// Groups of heads, each of them shared by equally many shards.
#[derive(Clone, Copy, Debug)]
struct SharedGroups {
    /// Columns of x in a shard.
    columns: usize,
    /// Columns of B, or of C, that a shard has.
    own: usize,
    /// Number of groups.
    groups: usize,
    /// Number of shards that share a group.
    sharing: usize,
}

/// Replaces the columns of B and C in `xbc_blc`, an equal part for each shard, by all columns of the
/// shard's group. `heads` are the heads of all `shards` shards, and the number of shards is a multiple of the
/// number of groups.
///
/// # Errors
/// Shapes that do not agree, memory is exhausted, or a collective failed.
pub fn share_groups(tape: &Tape, xbc_blc: Var, heads: StateHeads, shards: usize) -> Result<Var> {
    let groups = SharedGroups {
        columns: heads.columns() / shards,
        own: heads.groups * heads.states / shards,
        groups: heads.groups,
        sharing: shards / heads.groups,
    };
    xbc_blc.each_piece(tape, |_, xbc_blc| {
        let shared = one_piece(tape, xbc_blc.into_blocks().collect(), groups)?;
        Var::from_blocks(shared).ok_or(AutogradError::NotRecorded)
    })
}

/// Shares the columns of one piece of sequences, or of whole sequences; `xbc_blc` has one entry per local
/// shard.
fn one_piece(tape: &Tape, mut xbc_blc: Vec<Var>, groups: SharedGroups) -> Result<Vec<Var>> {
    autocast_all(tape, OPERATOR, &mut xbc_blc)?;
    tape.begin(OPERATOR)?;
    let sources: Vec<Source> = xbc_blc.iter().map(Var::block_source).collect();
    let ranks = TensorRanks::new(tape, true);
    let outputs = groups.gather(&ranks, xbc_blc.into_iter().map(Var::into_tensor).collect())?;
    tape.record(&sources, outputs, || ShareGroupsRule { groups, ranks })
}

impl SharedGroups {
    /// Returns the index of the group of a shard.
    const fn group_of(self, shard: usize) -> usize {
        shard / self.sharing
    }

    /// Returns the part of one group of an array of all shards, `[shards · rows, columns]`.
    fn part(self, all: &Tensor, group: usize, rows: usize) -> tensor::Result<Tensor> {
        let shape = [self.sharing * rows, 2 * self.own];
        all.view(group * shape[0] * shape[1], shape)
    }

    /// Splits the columns of x from the columns of B and C.
    fn split(self, xbc_blc: &Tensor, columns: usize) -> tensor::Result<[Tensor; 2]> {
        let part = |first, count| rearrange::slice(xbc_blc, COLUMNS, first, count);
        Ok([part(0, self.columns)?, part(self.columns, columns)?])
    }

    /// Returns the columns of x of each local shard, with the columns of B and C of its group.
    fn gather(self, ranks: &TensorRanks, parts: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let request = Request::new(Category::Activation, OPERATOR);
        let shape = parts.first().map_or(Shape::from([0]), Tensor::shape);
        let rows = shape.rows();
        let first = ranks.first_shard(parts.len());
        let mut of_x = Vec::with_capacity(parts.len());
        let mut own = Vec::with_capacity(parts.len());
        for part in parts {
            let [x_blc, bc_blc] = named(OPERATOR, self.split(&part, 2 * self.own))?;
            of_x.push(x_blc);
            own.push(bc_blc.reshape([rows, 2 * self.own])?);
        }
        let own = joined(own, request)?;
        let all = self.padded(ranks.gather(own, request)?, rows)?;
        let shared = |(shard, x_blc): (usize, Tensor)| {
            let bc_blc = self.in_columns(&self.part(&all, self.group_of(first + shard), rows)?, shape)?;
            rearrange::concatenate(&[&x_blc, &bc_blc], COLUMNS)
        };
        named(OPERATOR, of_x.into_iter().enumerate().map(shared).collect())
    }

    /// Completes an array of all shards with zeros for the shards of other ranks, if there are no such ranks,
    /// as when a single layer is measured.
    fn padded(self, gathered: Tensor, rows: usize) -> Result<Tensor> {
        let all = [self.groups * self.sharing * rows, 2 * self.own];
        if gathered.shape().rows() == all[0] {
            return Ok(gathered);
        }
        let request = Request::new(Category::Activation, OPERATOR);
        let padded = Tensor::zeros(gathered.device(), all, gathered.dtype(), request)?;
        padded.view(0, gathered.shape())?.copy_from(&gathered)?;
        Ok(padded)
    }

    /// Rearranges the columns of a group from shard by shard, `[shards, rows, B and C, own columns]`, to
    /// columns of B and then of C of each row of a value shaped like `x`.
    fn in_columns(self, by_shard: &Tensor, x: Shape) -> tensor::Result<Tensor> {
        let by_shard = by_shard.reshape([self.sharing, x.rows(), 2, self.own])?;
        let by_row = rearrange::transpose(&rearrange::transpose(&by_shard, 0, 2)?, 0, 1)?;
        by_row.reshape([x.dims()[0], x.dims()[1], 2 * self.sharing * self.own])
    }

    /// The inverse of [`SharedGroups::in_columns`].
    fn by_shard(self, bc_blc: &Tensor) -> tensor::Result<Tensor> {
        let rows = bc_blc.shape().rows();
        let by_row = bc_blc.reshape([rows, 2, self.sharing, self.own])?;
        let by_shard = rearrange::transpose(&rearrange::transpose(&by_row, 0, 1)?, 0, 2)?;
        by_shard.reshape([self.sharing * rows, 2 * self.own])
    }

    /// Returns the gradient of an array of all shards from one shard, f32.
    fn spread(self, bc_blc: &Tensor, group: usize) -> Result<Tensor> {
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let rows = bc_blc.shape().rows();
        let gradient = self.by_shard(bc_blc)?;
        if self.groups == 1 && gradient.dtype() == DType::F32 {
            return Ok(gradient);
        }
        let shape = [self.groups * self.sharing * rows, 2 * self.own];
        let all = match self.groups {
            1 => Tensor::empty(gradient.device(), shape, DType::F32, request)?,
            _ => Tensor::zeros(gradient.device(), shape, DType::F32, request)?,
        };
        let part = self.part(&all, group, rows)?;
        match gradient.dtype() {
            DType::F32 => part.copy_from(&gradient)?,
            _ => cast::into(&gradient, &part)?,
        }
        Ok(all)
    }
}

impl Rule for ShareGroupsRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let SharedGroups { own, sharing, .. } = self.groups;
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let first = self.ranks.first_shard(outputs.len());
        let mut of_x = Vec::with_capacity(outputs.len());
        let mut of_groups = Vec::with_capacity(outputs.len());
        for (shard, gradient) in outputs.into_iter().enumerate() {
            let gradient = gradient.ok_or(AutogradError::NotRecorded)?;
            let [dx_blc, bc_blc] = self.groups.split(&gradient, 2 * sharing * own)?;
            of_groups.push(self.groups.spread(&bc_blc, self.groups.group_of(first + shard))?);
            of_x.push(dx_blc);
        }
        let dtype = of_x.first().map_or(DType::F32, Tensor::dtype);
        let sum = self.ranks.rounded_sum_rows(of_groups, None, dtype, request)?;
        let input = |(shard, dx_blc): (usize, Tensor)| {
            let shape = dx_blc.shape().with(COLUMNS, 2 * own).unwrap_or(dx_blc.shape());
            let bc_blc = sum.view(shard * shape.elements(), shape)?;
            Ok(Some(rearrange::concatenate(&[&dx_blc, &bc_blc], COLUMNS)?))
        };
        of_x.into_iter().enumerate().map(input).collect()
    }
}
