//! Keys and values of the pieces of all ranks.

use collective::tensors::{self, Gathering};
use collective::{DataPlane, SharedPlane};
use device::{Category, Request};
use tensor::Tensor;

use crate::error::{AutogradError, Result};
use crate::pieces::part;

pub(super) const OPERATOR: &str = "piece_attention";

/// The pieces of all ranks.
#[derive(Debug)]
pub(super) struct Layout {
    /// Numbers of all pieces, in the order of the ranks.
    pub(super) dealt: Vec<usize>,
    pub(super) plane: Option<SharedPlane>,
    pub(super) batch: usize,
    /// Positions of a piece.
    pub(super) time: usize,
}

/// Keys and values of the pieces of all ranks, `[batch, positions, columns]` in the order of the positions,
/// gathered one piece of every rank at a time: the next ones travel while attention uses those that are here.
pub(super) struct Gathered<'a> {
    layout: &'a Layout,
    /// Keys and values of the pieces that are here, until they are gathered.
    own: Vec<Option<Tensor>>,
    /// Indices of the pieces that are here, in the order in which they are gathered: by the first position of
    /// any rank's piece.
    order: Vec<usize>,
    /// Number of those whose gathering has begun, and the last of them.
    begun: usize,
    travelling: Option<Gathering>,
    request: Request,
    all: Tensor,
}

impl<'a> Gathered<'a> {
    /// Begins to gather keys and values of the pieces that are here, `[batch, time, columns]` each.
    ///
    /// # Errors
    /// No pieces; out of memory; a failed collective.
    pub(super) fn begin(layout: &'a Layout, own: Vec<Tensor>, category: Category) -> Result<Self> {
        let request = Request::new(category, OPERATOR);
        let first = own.first().ok_or(AutogradError::NotRecorded)?;
        let shape = [layout.batch, layout.dealt.len() * layout.time, first.shape().columns()];
        // Kernels read whole tiles of keys, also beyond the last that counts, whose values must be finite.
        let all = match layout.plane.is_some() && own.len() > 1 {
            true => Tensor::zeros(first.device(), shape, first.dtype(), request)?,
            false => Tensor::empty(first.device(), shape, first.dtype(), request)?,
        };
        let mut order: Vec<usize> = (0..own.len()).collect();
        order.sort_by_key(|index| layout.first_number(*index, own.len()));
        let own = own.into_iter().map(Some).collect();
        let mut gathered = Gathered { layout, own, order, begun: 0, travelling: None, request, all };
        gathered.begin_next()?;
        Ok(gathered)
    }

    /// Returns keys and values, of which those of pieces up to number `number` have been gathered.
    ///
    /// # Errors
    /// Out of memory; a failed collective.
    pub(super) fn until(&mut self, number: usize) -> Result<&Tensor> {
        while self.travelling.is_some() {
            let index = self.order[self.begun - 1];
            if self.layout.first_number(index, self.own.len()) > number {
                break;
            }
            self.end_last(index)?;
            self.begin_next()?;
        }
        Ok(&self.all)
    }

    fn begin_next(&mut self) -> Result<()> {
        let Some(own) = self.order.get(self.begun).and_then(|index| self.own[*index].take()) else {
            return Ok(());
        };
        self.travelling = Some(match &self.layout.plane {
            Some(plane) => tensors::begin_all_gather(&own, &mut plane.clone(), self.request).map_err(of)?,
            None => Gathering::here(&own),
        });
        self.begun += 1;
        Ok(())
    }

    /// Copies the pieces that travel to their positions.
    fn end_last(&mut self, index: usize) -> Result<()> {
        let Some(gathering) = self.travelling.take() else { return Ok(()) };
        let (gathered, ranks, each) = (gathering.wait(), self.layout.ranks(), self.own.len());
        let columns = self.all.shape().columns();
        for holder in 0..ranks {
            let number = self.layout.dealt[holder * each + index];
            let of_holder = part(&gathered, holder, ranks)?;
            self.layout
                .sequences(&self.all, number, columns, &of_holder, |all, piece| all.copy_from(piece))?;
        }
        Ok(())
    }
}

fn of(source: collective::CollectiveError) -> AutogradError {
    AutogradError::Collective { operator: OPERATOR, source }
}

impl Layout {
    /// Number of ranks.
    fn ranks(&self) -> usize {
        self.plane.as_ref().map_or(1, DataPlane::world_size)
    }

    /// Returns the sum over ranks of `all`, `[batch, positions, columns]`: that of the pieces that are here,
    /// `[own · batch, time, columns]`.
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
        // Without other ranks, as in the plan of a layer alone, the first pieces are here.
        let Some(plane) = &self.plane else { return part(&dealt, 0, self.dealt.len() / own) };
        tensors::reduce_scatter(&dealt, &mut plane.clone(), request).map_err(of)
    }

    /// Number of the first of all ranks' pieces `index`, of `each` on a rank.
    fn first_number(&self, index: usize, each: usize) -> usize {
        self.dealt.iter().skip(index).step_by(each).copied().min().unwrap_or(0)
    }

    /// Calls `copy` with the rows of piece `number` of each sequence in `all`, and in `piece`.
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
