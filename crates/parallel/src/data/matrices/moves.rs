//! The plan of an update of matrices: waves of parameters, the owners of their matrices, and what travels.

use std::collections::BTreeMap;
use std::ops::Range;

use nn::Sharding;
use tensor::ops::orthogonalise::{NewtonSchulz, flops};

use super::stage_ranks::{Position, StageRanks};

/// Alignment of matrices in the staging memory, in elements: 512 bytes.
const ALIGNMENT: usize = 256;

/// Factor of an orthogonalised matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixScale {
    /// √max(1, rows / columns): updates have equal spectral norms relative to the shape.
    Spectral,
    /// 0.2 · √max(rows, columns): elements change about as much as AdamW's.
    Rms,
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

/// Elements of the direction of one of a wave's slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Direction {
    /// Index among the wave's slots; meaningless on another rank.
    pub(super) slot: usize,
    pub(super) range: Range<usize>,
}

/// Elements in memory of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Direction(Direction),
    Staging(Range<usize>),
}

/// A copy of elements from one rank to another, or within a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) source: Place,
    pub(super) to: usize,
    pub(super) target: Place,
}

/// A matrix that this rank orthogonalises.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Owned {
    pub(super) place: Place,
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
    /// Number of different parts of the parameter, over all tensor ranks.
    fn parts(&self) -> usize {
        self.parameter.sharding.parts()
    }

    /// Number of parts on each tensor rank.
    fn local_parts(&self) -> usize {
        self.parameter.parts.len().max(1)
    }

    /// Number of parts of the columns.
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

    /// Returns the elements `range` of part `part` as a place of the rank that holds them in shard `shard`.
    fn direction(&self, part: usize, shard: usize, range: &Range<usize>) -> Place {
        let local = part % self.local_parts();
        let slot = self.directions[local].unwrap_or(usize::MAX);
        let first = self.parameter.parts[local].ranges[shard].start;
        Place::Direction(Direction { slot, range: range.start - first..range.end - first })
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
            Place::Staging(first..first + range.len())
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
                    let (to, target) = (holder_rank, at_holder.clone());
                    let source = at_owner.clone();
                    wave.scatter.push(Move { from: owner_rank, source, to, target });
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
            let place = match is_whole {
                true => self.direction(0, 0, &self.range),
                false => Place::Staging(base..base + self.parts() * self.range.len()),
            };
            let factor = scale.factor(self.shape);
            wave.owned.push(Owned { place, shape: self.shape, parts: self.column_parts(), scale: factor });
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

#[cfg(test)]
mod tests {
    use collective::{Axis, RankGrid};

    use super::*;

    /// A grid, the axes along which state may be shared, and the number of ranks that share it.
    type Ranks = (&'static [(Axis, usize)], &'static [Axis], usize);

    const DATA: &[Axis] = &[Axis::Data];
    const GRIDS: &[Ranks] = &[
        (&[], DATA, 1),
        (&[(Axis::Data, 3)], DATA, 1),
        (&[(Axis::Data, 3)], DATA, 3),
        (&[(Axis::Data, 4)], DATA, 2),
        (&[(Axis::Tensor, 2)], DATA, 1),
        (&[(Axis::Pipeline, 2), (Axis::Data, 2), (Axis::Tensor, 2)], DATA, 2),
        (&[(Axis::Data, 2), (Axis::Context, 2)], DATA, 1),
        (&[(Axis::Data, 2), (Axis::Context, 2), (Axis::Tensor, 2)], &[Axis::Data, Axis::Context], 4),
    ];

    /// Number of parts over tensor ranks; two ranks hold two of each.
    const PARTS: usize = 4;

    /// Shardings with the rows of their matrices: whole, divided by groups of rows, and by columns.
    fn parameters() -> Vec<(Sharding, Vec<usize>)> {
        let whole = |rows: usize, columns: usize| Sharding::replicated([rows, columns]);
        let groups = [8, 4, 4];
        vec![
            (whole(5, 7), vec![5]),
            (whole(16, 6).divided_in_groups(Axis::Tensor, 0, PARTS, &groups).unwrap(), groups.to_vec()),
            (whole(6, 8).divided(Axis::Tensor, 1, PARTS).unwrap(), vec![2, 2, 2]),
            (whole(9, 3), vec![4, 5]),
        ]
    }

    /// A rank with its memory: directions by wave and slot, and staging by wave.
    struct Simulated {
        waves: Vec<Wave>,
        directions: BTreeMap<usize, Vec<f64>>,
        staging: Vec<f64>,
    }

    impl Simulated {
        fn new((axes, replica_axes, shards): Ranks, rank: usize) -> Self {
            let grid = RankGrid::new(axes, rank).unwrap();
            let ranks = StageRanks::new(&grid, replica_axes, shards);
            let here = PARTS / grid.size(Axis::Tensor);
            let own = grid.coordinate_over(replica_axes) % shards;
            let mut directions = BTreeMap::new();
            let mut listed = Vec::new();
            for (number, (sharding, matrices)) in parameters().into_iter().enumerate() {
                let elements = sharding.shape().elements();
                let local = if sharding.parts() == 1 { 1 } else { here };
                // Shards of different lengths, some of them empty.
                let border = |shard: usize| (shard * (elements / 2 + number)).min(elements);
                let end = |shard: usize| if shard + 1 == shards { elements } else { border(shard + 1) };
                let ranges: Vec<_> = (0..shards).map(|shard| border(shard)..end(shard)).collect();
                let part = |part: usize| {
                    let coordinate = |axis| match axis {
                        Axis::Tensor => grid.coordinate(axis) * here + part,
                        axis => grid.coordinate(axis),
                    };
                    let runs = sharding.runs(coordinate, ranges[own].clone()).into_iter();
                    let indices = runs.flat_map(|run| run.whole..run.whole + run.elements);
                    let values: Vec<f64> = indices.map(|index| (1000 * number + index) as f64).collect();
                    let slot = (!values.is_empty()).then_some(10 * number + part);
                    directions.extend(slot.map(|slot| (slot, values)));
                    MatrixPart { ranges: ranges.clone(), slot }
                };
                let parts = (0..local).map(part).collect();
                listed.push(MatrixParameter { matrices, sharding, parts });
            }
            let waves = plan(&ranks, &listed, 60, (&NewtonSchulz::default(), MatrixScale::Rms));
            let staged = waves.iter().flat_map(|wave| wave.staged.values()).max().copied().unwrap_or(0);
            Simulated { waves, directions, staging: vec![f64::NAN; staged] }
        }

        fn place(&mut self, wave: usize, place: &Place) -> &mut [f64] {
            match place {
                Place::Staging(range) => &mut self.staging[range.clone()],
                Place::Direction(Direction { slot, range }) => {
                    let slot = self.waves[wave].slots[*slot];
                    &mut self.directions.get_mut(&slot).unwrap()[range.clone()]
                }
            }
        }
    }

    /// Makes all ranks' moves: each message is in the lists of its sender and of its receiver.
    fn make(all: &mut [Simulated], wave: usize, moves: impl Fn(&Wave) -> Vec<Move>) {
        let mut messages: BTreeMap<(usize, usize), Vec<Vec<f64>>> = BTreeMap::new();
        for rank in 0..all.len() {
            for one in moves(&all[rank].waves[wave]).iter().filter(|one| one.from == rank) {
                let values = all[rank].place(wave, &one.source).to_vec();
                messages.entry((one.from, one.to)).or_default().push(values);
            }
        }
        messages.values_mut().for_each(|sent| sent.reverse());
        for rank in 0..all.len() {
            for one in moves(&all[rank].waves[wave]).iter().filter(|one| one.to == rank) {
                let values = messages.get_mut(&(one.from, one.to)).and_then(Vec::pop).unwrap();
                all[rank].place(wave, &one.target).copy_from_slice(&values);
            }
        }
        assert!(messages.values().all(Vec::is_empty), "a message is not received");
    }

    /// Returns the elements of matrix `index` of a parameter as memory of `parts` column parts holds them.
    fn expected(number: usize, index: usize, parts: usize) -> Vec<f64> {
        let (sharding, matrices) = parameters().swap_remove(number);
        let columns = sharding.whole().columns();
        let width = columns / parts;
        let first: usize = matrices[..index].iter().sum();
        let of_part = |part: usize| {
            (first..first + matrices[index])
                .flat_map(move |row| (0..width).map(move |column| row * columns + part * width + column))
        };
        (0..parts).flat_map(of_part).map(|element| (1000 * number + element) as f64).collect()
    }

    #[test]
    fn every_matrix_reaches_one_owner_and_comes_back() {
        for ranks in GRIDS {
            let world = RankGrid::new(ranks.0, 0).unwrap().world_size();
            let mut all: Vec<_> = (0..world).map(|rank| Simulated::new(*ranks, rank)).collect();
            let before: Vec<_> = all.iter().map(|rank| rank.directions.clone()).collect();
            let mut owned = Vec::new();
            for wave in 0..all[0].waves.len() {
                make(&mut all, wave, |wave| wave.gather.clone());
                for rank in &mut all {
                    for matrix in rank.waves[wave].owned.clone() {
                        assert_eq!(matrix.scale, MatrixScale::Rms.factor(matrix.shape));
                        let values = rank.place(wave, &matrix.place);
                        owned.push((matrix.parts, matrix.shape, values.to_vec()));
                        values.iter_mut().for_each(|value| *value += 0.5);
                    }
                }
                make(&mut all, wave, |wave| wave.scatter.clone());
            }
            let mut matrices = Vec::new();
            for (number, (sharding, rows)) in parameters().iter().enumerate() {
                for (index, rows) in rows.iter().enumerate() {
                    let parts = if number == 2 { PARTS } else { 1 };
                    matrices.push((
                        parts,
                        [*rows, sharding.whole().columns()],
                        expected(number, index, parts),
                    ));
                }
            }
            // Stages of a pipeline have the same matrices here.
            let stages = RankGrid::new(ranks.0, 0).unwrap().size(Axis::Pipeline);
            for matrix in &matrices {
                let count = owned.iter().filter(|other| *other == matrix).count();
                assert_eq!(count, stages, "{ranks:?}: {matrix:?}");
            }
            assert_eq!(owned.len(), stages * matrices.len());
            for (rank, before) in all.iter().zip(&before) {
                for (slot, values) in before {
                    let moved: Vec<_> = values.iter().map(|value| value + 0.5).collect();
                    assert_eq!(rank.directions[slot], moved, "{ranks:?}");
                }
            }
        }
    }

    #[test]
    fn owners_share_the_work() {
        let sharding = Sharding::replicated([64, 64]);
        let part = MatrixPart { ranges: vec![0..4096], slot: Some(0) };
        let parameter = MatrixParameter { matrices: vec![64], sharding, parts: vec![part] };
        for (ranks, most) in [(1, 12), (2, 6), (3, 4), (5, 3)] {
            let grid = RankGrid::new(&[(Axis::Data, ranks)], 0).unwrap();
            let mut parameters = vec![parameter.clone(); 12];
            for (slot, parameter) in parameters.iter_mut().enumerate() {
                parameter.parts[0].slot = Some(slot);
            }
            let scale = (&NewtonSchulz::default(), MatrixScale::Spectral);
            let waves = plan(&StageRanks::new(&grid, DATA, 1), &parameters, usize::MAX, scale);
            assert_eq!((waves.len(), waves[0].owned.len()), (1, most), "{ranks} ranks");
        }
    }
}
