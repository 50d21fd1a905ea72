//! Muon's matrices, which an update needs whole: each has one owner rank, which orthogonalises it.
//!
//! Every rank computes the directions of its own shards. For one wave of parameters after another, the shards
//! of each matrix travel to its owner, and its orthogonalised values back to all ranks that hold parts of it.
//! Owners are chosen so that ranks compute equally many FLOPs. A matrix's values depend on neither its owner
//! nor its shards, so updates have the same bits on every grid.

mod moves;
mod stage_ranks;
#[cfg(test)]
mod tests;

use collective::{Axis, Collective, PeerRegion, ProcessGroup, RankGrid};
use device::{Category, DType, Device, Request, StreamKind};
use tensor::Tensor;
use tensor::ops::orthogonalise::{self, Matrix, NewtonSchulz, Workspace};

use super::stream_order::between_compute;
use crate::error::Result;
use moves::{Direction, Move, Storage, Wave};
pub use moves::{MatrixParameter, MatrixPart, MatrixScale};
pub use stage_ranks::StageRanks;

/// Minimum number of elements of a wave. Waves limit the workspace, and each costs two exchanges.
const LEAST_ELEMENTS: usize = 1 << 24;
/// Number of waves into which larger models are divided.
const WAVES: usize = 8;

/// The matrices of a rank's stages, their owners, and the transfers to and from the owners.
#[derive(Debug)]
pub struct MatrixOwners {
    rules: NewtonSchulz,
    waves: Vec<Wave>,
    workspace: Workspace,
    /// Memory for matrices that this rank owns and other ranks or shards hold parts of, one wave at a time.
    staging: Tensor,
}

impl MatrixOwners {
    /// Chooses the owners of the matrices of `parameters` among the ranks of the grid with the same stages,
    /// and allocates the workspace of this rank's matrices. All those ranks pass the same parameters, except
    /// for their slots.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub fn new(
        device: &Device,
        ranks: &StageRanks,
        parameters: &[MatrixParameter],
        (rules, scale): (NewtonSchulz, MatrixScale),
    ) -> Result<Self> {
        let all: usize = parameters.iter().map(|one| one.sharding.whole().elements()).sum();
        let least = (all / WAVES).max(LEAST_ELEMENTS);
        let waves = moves::plan(ranks, parameters, least, (&rules, scale));
        let shapes = waves.iter().flat_map(|wave| wave.shapes.iter().copied());
        let workspace = Workspace::new(device, shapes)?;
        let staged = waves.iter().flat_map(|wave| wave.staged.values()).max().copied().unwrap_or(0);
        let request = Request::new(Category::OptimizerState, "orthogonalise.matrices");
        let staging = Tensor::empty(device, [staged], DType::Bf16, request)?;
        Ok(MatrixOwners { rules, waves, workspace, staging })
    }

    /// Returns, for each wave, the indices of the slots of this rank that belong to it, in increasing order.
    pub fn waves(&self) -> impl Iterator<Item = &[usize]> {
        self.waves.iter().map(|wave| &*wave.slots)
    }

    /// Replaces the directions of wave `wave` by their orthogonalised values, scaled by their matrix's shape.
    /// `directions` has one bf16 tensor for each of the wave's slots. `world` is the group of all ranks.
    ///
    /// # Errors
    /// A collective failed.
    pub fn orthogonalise(&self, world: &ProcessGroup, wave: usize, directions: &[Tensor]) -> Result<()> {
        let Wave { owned, gather, scatter, .. } = &self.waves[wave];
        let own = world.rank();
        let stored = |storage: &Storage| match storage {
            Storage::Direction(Direction { slot, range }) => {
                directions[*slot].view(range.start, [range.len()])
            }
            Storage::Staging(range) => self.staging.view(range.start, [range.len()]),
        };
        self.make(own, gather, world, stored)?;
        for matrix in owned {
            let elements = stored(&matrix.storage)?;
            let whole = Matrix { elements, shape: matrix.shape, parts: matrix.parts };
            orthogonalise::orthogonalise(&self.rules, &whole, matrix.scale, &self.workspace)?;
        }
        self.make(own, scatter, world, stored)
    }

    /// Runs one set of moves: copies parts that stay on this rank, and exchanges the others.
    fn make(
        &self,
        own: usize,
        moves: &[Move],
        world: &ProcessGroup,
        stored: impl Fn(&Storage) -> tensor::Result<Tensor>,
    ) -> Result<()> {
        let mut sent = Vec::new();
        let mut received = Vec::new();
        for Move { from, source, to, target } in moves {
            match (*from == own, *to == own) {
                (true, true) => stored(target)?.copy_from(&stored(source)?)?,
                (true, false) => sent.push((*to, stored(source)?)),
                (false, true) => received.push((*from, stored(target)?)),
                (false, false) => {}
            }
        }
        if sent.is_empty() && received.is_empty() {
            return Ok(());
        }
        let exchange = Collective::Exchange { sends: regions(&sent), receives: regions(&received) };
        between_compute(self.staging.device(), || Ok(world.run(exchange, StreamKind::Reduce)?))
    }
}

fn regions(list: &[(usize, Tensor)]) -> Vec<PeerRegion<'_>> {
    list.iter().map(|(peer, tensor)| (*peer, tensor.region())).collect()
}

/// Returns the transfers of matrices between the ranks of `grid` with the same stages, for warm-up.
pub fn matrix_peers(grid: &RankGrid) -> Vec<Collective<()>> {
    let ranks = grid.group_over(&[Axis::Data, Axis::Tensor, Axis::Context]).ranks;
    if ranks.len() == 1 { Vec::new() } else { ranks.into_iter().map(Collective::peer).collect() }
}
