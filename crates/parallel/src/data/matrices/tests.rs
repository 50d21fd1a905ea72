//! The plan of moves, made on the ranks of several grids.

use std::collections::BTreeMap;

use collective::{Axis, RankGrid};

use nn::Sharding;
use tensor::ops::orthogonalise::NewtonSchulz;

use super::moves::{Direction, MatrixParameter, MatrixPart, MatrixScale, Move, Storage, Wave, plan};
use super::stage_ranks::StageRanks;

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

    fn values(&mut self, wave: usize, storage: &Storage) -> &mut [f64] {
        match storage {
            Storage::Staging(range) => &mut self.staging[range.clone()],
            Storage::Direction(Direction { slot, range }) => {
                let slot = self.waves[wave].slots[*slot];
                &mut self.directions.get_mut(&slot).unwrap()[range.clone()]
            }
        }
    }
}

/// Runs the moves of all ranks.
fn make(all: &mut [Simulated], wave: usize, moves: impl Fn(&Wave) -> Vec<Move>) {
    let mut messages: BTreeMap<(usize, usize), Vec<Vec<f64>>> = BTreeMap::new();
    for (rank, memory) in all.iter_mut().enumerate() {
        for one in moves(&memory.waves[wave]).iter().filter(|one| one.from == rank) {
            let values = memory.values(wave, &one.source).to_vec();
            messages.entry((one.from, one.to)).or_default().push(values);
        }
    }
    messages.values_mut().for_each(|sent| sent.reverse());
    for (rank, memory) in all.iter_mut().enumerate() {
        for one in moves(&memory.waves[wave]).iter().filter(|one| one.to == rank) {
            let values = messages.get_mut(&(one.from, one.to)).and_then(Vec::pop).unwrap();
            memory.values(wave, &one.target).copy_from_slice(&values);
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
                    let values = rank.values(wave, &matrix.storage);
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
                matrices.push((parts, [*rows, sharding.whole().columns()], expected(number, index, parts)));
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
    let part = MatrixPart { ranges: std::iter::once(0..4096).collect(), slot: Some(0) };
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
