//! The plan of an update of matrices: waves of parameters, the owners of their matrices, and the copies
//! between ranks.

use std::collections::BTreeMap;
use std::ops::Range;

use nn::Sharding;
use tensor::ops::orthogonalise::{NewtonSchulz, flops};

use super::stage_ranks::{Position, StageRanks};

/// Alignment of matrices in the staging memory, in elements: 512 bytes.
const ALIGNMENT: usize = 256;

system::names! {
    /// Factor of an orthogonalised matrix.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MatrixScale {
        /// √max(1, rows / columns): updates have equal spectral norms relative to the shape.
        Spectral = "spectral",
        /// 0.2 · √max(rows, columns): elements change about as much as AdamW's.
        Rms = "rms",
    }
}

impl MatrixScale {
    /// Returns the factor of a matrix of this shape.
    #[must_use]
    pub fn factor(self, [rows, columns]: [usize; 2]) -> f32 {
        let factor = match self {
            MatrixScale::Spectral => (rows as f64 / columns as f64).max(1.0).sqrt(),
            MatrixScale::Rms => 0.2 * (rows.max(columns) as f64).sqrt(),
        };
        factor as f32
    }
}

/// A trained parameter that stacks matrices.
#[derive(Clone, Debug)]
pub struct MatrixParameter {
    /// Number of rows of each matrix.
    pub matrices: Vec<usize>,
    /// How the parameter is divided over tensor ranks, with its shape `[rows, columns]`.
    pub sharding: Sharding,
    /// The parameter's parts on this rank, in order.
    pub parts: Vec<MatrixPart>,
}

/// A part of a parameter on a rank. Ranks along the tensor axis have equal ranges.
#[derive(Clone, Debug)]
pub struct MatrixPart {
    /// Range of the part's elements in each shard of the state.
    pub ranges: Vec<Range<usize>>,
    /// Index of this rank's slot in the optimizer; `None` if this rank owns none of the part.
    pub slot: Option<usize>,
}

/// A range of elements of an update direction: the orthogonalised momentum of one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Direction {
    /// Index among the wave's slots; meaningless on another rank.
    pub(super) slot: usize,
    pub(super) range: Range<usize>,
}

/// Elements in memory of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    Direction(Direction),
    Staging(Range<usize>),
}

/// A copy of elements from one rank to another, or within a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) source: Storage,
    pub(super) to: usize,
    pub(super) target: Storage,
}

/// A matrix that this rank orthogonalises.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Owned {
    pub(super) storage: Storage,
    pub(super) shape: [usize; 2],
    /// Number of parts of the columns, one after another.
    pub(super) parts: usize,
    pub(super) scale: f32,
}

/// Parameters whose matrices are orthogonalised together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wave {
    pub(super) slots: Vec<usize>,
    pub(super) owned: Vec<Owned>,
    /// Moves that involve this rank, before and after the iterations.
    pub(super) gather: Vec<Move>,
    pub(super) scatter: Vec<Move>,
    /// Shapes of all matrices, whoever owns them.
    pub(super) shapes: Vec<[usize; 2]>,
    /// Number of elements of the staging memory of each rank of the stage; all ranks allocate the maximum, so
    /// that their memory does not depend on what they own.
    pub(super) staged: BTreeMap<usize, usize>,
}

/// One matrix of a parameter.
struct MatrixOf<'a> {
    parameter: &'a MatrixParameter,
    /// Index of each local part's direction among the wave's slots.
    directions: &'a [Option<usize>],
    shape: [usize; 2],
    /// Elements of each part of the parameter that belong to the matrix.
    range: Range<usize>,
}

/// Plans the waves of `parameters` for this rank, each of at least `least` elements unless fewer are left.
pub(super) fn plan(
    ranks: &StageRanks,
    parameters: &[MatrixParameter],
    least: usize,
    (rules, scale): (&NewtonSchulz, MatrixScale),
) -> Vec<Wave> {
    let mut waves = Vec::new();
    let mut first = 0;
    let mut filled = 0;
    for (index, parameter) in parameters.iter().enumerate() {
        filled += parameter.sharding.whole().elements();
        if filled >= least || index + 1 == parameters.len() {
            waves.push(plan_wave(ranks, &parameters[first..=index], rules, scale));
            first = index + 1;
            filled = 0;
        }
    }
    waves
}

fn plan_wave(
    ranks: &StageRanks,
    parameters: &[MatrixParameter],
    rules: &NewtonSchulz,
    scale: MatrixScale,
) -> Wave {
    let mut wave = Wave::default();
    let mut slots: Vec<usize> =
        parameters.iter().flat_map(|one| one.parts.iter().filter_map(|part| part.slot)).collect();
    slots.sort_unstable();
    let index = |part: &MatrixPart| part.slot.and_then(|slot| slots.binary_search(&slot).ok());
    let directions: Vec<Vec<_>> =
        parameters.iter().map(|parameter| parameter.parts.iter().map(index).collect()).collect();
    let mut matrices = Vec::new();
    for (parameter, directions) in parameters.iter().zip(&directions) {
        matrices.extend(matrices_of(parameter, directions));
    }
    let owners = owners(ranks, &matrices, rules);
    for (matrix, owner) in matrices.iter().zip(owners) {
        matrix.add_to(&mut wave, ranks, owner, scale);
    }
    wave.slots = slots;
    wave
}

/// Returns the matrices of a parameter.
fn matrices_of<'a>(
    parameter: &'a MatrixParameter,
    directions: &'a [Option<usize>],
) -> impl Iterator<Item = MatrixOf<'a>> {
    let whole = parameter.sharding.whole();
    let part = parameter.sharding.shape();
    let columns = whole.columns();
    let mut first = 0;
    parameter.matrices.iter().map(move |rows| {
        // A part has equally many rows of each matrix, or all rows and equally many columns.
        let elements = rows * part.elements() / whole.rows().max(1);
        let range = first..first + elements;
        first = range.end;
        MatrixOf { parameter, directions, shape: [*rows, columns], range }
    })
}

/// Chooses the owner of each matrix: the largest first, each for the rank with the least work so far.
fn owners(ranks: &StageRanks, matrices: &[MatrixOf<'_>], rules: &NewtonSchulz) -> Vec<Position> {
    let positions: Vec<_> = ranks.positions().collect();
    let mut work = vec![0u64; positions.len()];
    let mut order: Vec<_> = (0..matrices.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(flops(rules, matrices[*index].shape)));
    let mut owners = vec![positions[0]; matrices.len()];
    for index in order {
        let least = (0..work.len()).min_by_key(|rank| work[*rank]).unwrap_or(0);
        work[least] += flops(rules, matrices[index].shape);
        owners[index] = positions[least];
    }
    owners
}

impl MatrixOf<'_> {
    /// Number of tensor shards of the parameter.
    fn parts(&self) -> usize {
        self.parameter.sharding.parts()
    }

    /// Number of tensor shards on each tensor rank.
    fn local_parts(&self) -> usize {
        self.parameter.parts.len().max(1)
    }

    /// Number of tensor shards along the columns.
    fn column_parts(&self) -> usize {
        let divisions = self.parameter.sharding.divisions().iter();
        divisions.filter(|division| division.dimension == 1).map(|division| division.parts).product()
    }

    /// Returns the matrix's elements in the shard `shard` of part `part`, counted in the part.
    fn owned(&self, part: usize, shard: usize) -> Option<Range<usize>> {
        let owned = &self.parameter.parts[part % self.local_parts()].ranges[shard];
        let range = owned.start.max(self.range.start)..owned.end.min(self.range.end);
        (range.start < range.end).then_some(range)
    }

    /// Returns the memory of elements `range` of part `part` on the rank that holds them in shard `shard`.
    fn direction(&self, part: usize, shard: usize, range: &Range<usize>) -> Storage {
        let local = part % self.local_parts();
        let slot = self.directions[local].unwrap_or(usize::MAX);
        let first = self.parameter.parts[local].ranges[shard].start;
        Storage::Direction(Direction { slot, range: range.start - first..range.end - first })
    }

    /// Adds the matrix, with its moves that involve this rank, to a wave.
    fn add_to(&self, wave: &mut Wave, ranks: &StageRanks, owner: Position, scale: MatrixScale) {
        let own = ranks.own();
        let owner_rank = ranks.rank_at(owner);
        let is_owner = owner_rank == own;
        // A rank that holds the whole matrix in one slot needs no other memory for it.
        let is_whole = self.parts() == 1 && ranks.shards() == 1;
        let staged = wave.staged.entry(owner_rank).or_default();
        let base = *staged;
        if !is_whole {
            *staged += (self.parts() * self.range.len()).next_multiple_of(ALIGNMENT);
        }
        wave.shapes.push(self.shape);
        let staged = |part: usize, range: &Range<usize>| {
            let first = base + part * self.range.len() + range.start - self.range.start;
            Storage::Staging(first..first + range.len())
        };
        for part in 0..self.parts() {
            for shard in 0..ranks.shards() {
                let Some(range) = self.owned(part, shard) else { continue };
                let at_owner = match is_whole {
                    true => self.direction(part, shard, &range),
                    false => staged(part, &range),
                };
                let holders = self.holders(ranks, part, shard);
                for holder in holders {
                    let holder_rank = ranks.rank_at(holder);
                    if holder_rank != own && !is_owner || is_whole && holder_rank == owner_rank {
                        continue;
                    }
                    let at_holder = self.direction(part, shard, &range);
                    let target = at_holder.clone();
                    let source = at_owner.clone();
                    wave.scatter.push(Move { from: owner_rank, source, to: holder_rank, target });
                    // The owner's own copy has it all; where parts are replicated, it takes its own.
                    let is_source =
                        holder.copy == owner.copy && (self.parts() > 1 || holder.tensor == owner.tensor);
                    if is_source && !is_whole {
                        let target = at_owner.clone();
                        wave.gather.push(Move {
                            from: holder_rank,
                            source: at_holder,
                            to: owner_rank,
                            target,
                        });
                    }
                }
            }
        }
        if is_owner {
            let storage = match is_whole {
                true => self.direction(0, 0, &self.range),
                false => Storage::Staging(base..base + self.parts() * self.range.len()),
            };
            let factor = scale.factor(self.shape);
            wave.owned.push(Owned { storage, shape: self.shape, parts: self.column_parts(), scale: factor });
        }
    }

    /// Returns the ranks that hold shard `shard` of part `part`.
    fn holders(&self, ranks: &StageRanks, part: usize, shard: usize) -> Vec<Position> {
        let tensor = match self.parts() {
            1 => 0..ranks.tensor_ranks(),
            _ => part / self.local_parts()..part / self.local_parts() + 1,
        };
        let copies = ranks.copies();
        tensor.flat_map(|tensor| (0..copies).map(move |copy| Position { tensor, copy, shard })).collect()
    }
}
