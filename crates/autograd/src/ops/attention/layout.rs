//! The distribution of sequence pieces over ranks: gathers keys and values, and scatters their gradients.

use collective::{ProcessGroup, tensors};
use device::{Category, Request};
use tensor::Tensor;

use super::block::{OPERATOR, QueryBlock};
use crate::error::{AutogradError, Result};
use crate::sharded::part;

/// The pieces of all ranks.
#[derive(Debug)]
pub(super) struct Layout {
    /// Indices of all pieces, in the order of the ranks.
    pub(super) dealt: Vec<usize>,
    pub(super) group: Option<ProcessGroup>,
    pub(super) batch: usize,
    /// Number of positions of a piece.
    pub(super) time: usize,
}

impl Layout {
    /// Number of ranks.
    fn ranks(&self) -> usize {
        self.group.as_ref().map_or(1, ProcessGroup::world_size)
    }

    /// Gathers the keys and values of all pieces in the order of their positions: `[batch, positions,
    /// columns]`.
    pub(super) fn gather(&self, own: &[QueryBlock], category: Category) -> Result<Tensor> {
        let request = Request::new(category, OPERATOR);
        let first = own.first().ok_or(AutogradError::NotRecorded)?.keys_values()?;
        let positions = self.dealt.len() * self.time;
        let columns = first.shape().columns();
        let all = Tensor::empty(first.device(), [self.batch, positions, columns], first.dtype(), request)?;
        for (index, piece) in own.iter().enumerate() {
            let keys_values = piece.keys_values()?;
            let gathered = match &self.group {
                Some(group) => tensors::all_gather(keys_values, group, request)
                    .map_err(|source| AutogradError::Collective { operator: OPERATOR, source })?,
                None => keys_values.clone(),
            };
            for holder in 0..self.ranks() {
                let number = self.dealt[holder * own.len() + index];
                let of_holder = part(&gathered, holder, self.ranks())?;
                self.sequences(&all, number, columns, &of_holder, |all, piece| all.copy_from(piece))?;
            }
        }
        Ok(all)
    }

    /// Sums `all`, `[batch, positions, columns]`, over ranks, and returns the sums of the local pieces: `[own
    /// · batch, time, columns]`.
    pub(super) fn scatter(&self, all: Tensor, own: usize) -> Result<Tensor> {
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let columns = all.shape().columns();
        let rows = self.dealt.len() * self.batch;
        let dealt = Tensor::empty(all.device(), [rows, self.time, columns], all.dtype(), request)?;
        for (index, number) in self.dealt.iter().enumerate() {
            let piece = part(&dealt, index, self.dealt.len())?;
            self.sequences(&all, *number, columns, &piece, |all, piece| piece.copy_from(all))?;
        }
        drop(all);
        // Without other ranks, as when planning a single layer, the local pieces are the first ones.
        let Some(group) = &self.group else { return part(&dealt, 0, self.dealt.len() / own) };
        let failed = |source| AutogradError::Collective { operator: OPERATOR, source };
        tensors::reduce_scatter(&dealt, group, request).map_err(failed)
    }

    /// Calls `copy` for each sequence, with the rows of piece `number` in `all` and in `piece`.
    fn sequences(
        &self,
        all: &Tensor,
        number: usize,
        columns: usize,
        piece: &Tensor,
        copy: impl Fn(&Tensor, &Tensor) -> tensor::Result<()>,
    ) -> Result<()> {
        let elements = self.time * columns;
        for sequence in 0..self.batch {
            let whole = all.view((sequence * self.dealt.len() + number) * elements, [elements])?;
            copy(&whole, &piece.view(sequence * elements, [elements])?)?;
        }
        Ok(())
    }
}
