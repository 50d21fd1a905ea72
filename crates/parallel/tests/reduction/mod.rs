//! Reductions give the same sums, in the same order, for any distribution over ranks and buckets.

mod direct;
mod rounds;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use autograd::{GradientSink, UseId, Weight};
use collective::{
    Axis, Communicator, DividedGroup, GridGroups, PeerAccessOptions, RankGrid, RankTree, TreeSum, threads,
    tree_sums,
};
use device::{Category, DType, Device, DeviceOptions, StreamKind};
use half::bf16;
use nn::{Init, Parameters};
use parallel::data::{Assignment, BucketEnd, GradientReduction, Reduction, ReductionOptions};
use parallel::data::{gather_rows, gather_sums, gather_weights};
use parallel::{ParallelError, Result};
use tensor::Tensor;

/// Returns the gradient of a use in a micro-batch: values whose sum depends on the order of addition.
fn gradient(use_id: u32, micro_batch: usize, elements: usize) -> Vec<f32> {
    // Many grids need the same gradients.
    type Made = BTreeMap<(u32, usize, usize), Arc<[f32]>>;
    static MADE: Mutex<Made> = Mutex::new(BTreeMap::new());
    let key = (use_id, micro_batch, elements);
    if let Some(made) = MADE.lock().unwrap().get(&key).cloned() {
        return made.to_vec();
    }
    let name = philox::key_of_name(u64::from(use_id), "gradient");
    let block = |i: usize| philox::normals(philox::philox4x32(name, [i as u32, micro_batch as u32, 0, 0]));
    let values: Vec<f32> = (0..elements).map(|i| block(i)[0] * 10_f32.powi((i % 7) as i32)).collect();
    MADE.lock().unwrap().insert(key, values.clone().into());
    values
}

/// Rounds to the nearest value of `dtype`.
fn rounded(value: f32, dtype: DType) -> f32 {
    if dtype == DType::Bf16 { bf16::from_f32(value).to_f32() } else { value }
}

fn write(tensor: &Tensor, values: &[f32]) -> tensor::Result<()> {
    match tensor.dtype() {
        DType::Bf16 => tensor.set(&values.iter().map(|value| bf16::from_f32(*value)).collect::<Vec<_>>()),
        _ => tensor.set(values),
    }
}

fn read(tensor: &Tensor) -> tensor::Result<Vec<f32>> {
    Ok(match tensor.dtype() {
        DType::Bf16 => tensor.to_vec::<bf16>()?.into_iter().map(bf16::to_f32).collect(),
        _ => tensor.to_vec()?,
    })
}

/// Computes a sum by its definition: every micro-batch's sum and every node is rounded to `dtype`.
fn expected(use_id: u32, elements: usize, micro_batches: usize, lanes: usize, dtype: DType) -> Vec<f32> {
    let per_lane = micro_batches / lanes;
    let add = |a: Vec<f32>, b: &[f32]| -> Vec<f32> {
        a.iter().zip(b).map(|(a, b)| rounded(a + b, dtype)).collect()
    };
    // The first gradient is rounded when written; later ones are added in f32 before rounding.
    let lane = |lane: usize| {
        let first = gradient(use_id, lane * per_lane, elements);
        let first = first.into_iter().map(|value| rounded(value, dtype)).collect();
        (1..per_lane).fold(first, |sum, m| add(sum, &gradient(use_id, lane * per_lane + m, elements)))
    };
    let mut level: Vec<Vec<f32>> = (0..lanes).map(lane).collect();
    while level.len() > 1 {
        let sum = |pair: &[Vec<f32>]| match pair {
            [left, right] => add(left.clone(), right),
            _ => pair[0].clone(),
        };
        level = level.chunks(2).map(sum).collect();
    }
    level.remove(0)
}

const SHAPES: [usize; 5] = [9000, 5, 300, 9500, 128];

/// Creates five parameters in three units; the first parameter is used twice.
fn parameters(device: &Device, dtype: DType) -> (Parameters, Vec<Weight>) {
    let mut parameters = Parameters::new(device, 1, dtype);
    let mut create = |i: usize| {
        if i.is_multiple_of(2) {
            parameters.begin_unit();
        }
        parameters.create(&format!("p{i}"), [SHAPES[i]], Init::Constant(0.0)).unwrap()
    };
    let mut uses: Vec<_> = (0..SHAPES.len()).map(&mut create).collect();
    uses.push(parameters.reuse("p0").unwrap());
    (parameters, uses)
}

/// One rank's part of one sum: parameter, first element, values.
type OwnedPart = (usize, usize, Vec<f32>);

fn options(assignment: Assignment, rank: usize, bucket_end: BucketEnd, how: How) -> ReductionOptions {
    let (reduction, zero_stage, dtype) = how;
    ReductionOptions {
        assignment,
        rank,
        dtype,
        bucket_end,
        reduction,
        zero_stage,
        loss: true,
        loss_values: 1,
    }
}

/// Kind of reduction, ZeRO stage, and dtype of the gradients.
type How = (Reduction, u32, DType);
const ALL: [How; 6] = [
    (Reduction::Tree, 0, DType::F32),
    (Reduction::Tree, 1, DType::F32),
    (Reduction::Library, 0, DType::F32),
    (Reduction::Library, 1, DType::F32),
    (Reduction::Tree, 1, DType::Bf16),
    (Reduction::Library, 0, DType::Bf16),
];

/// Closes buckets after several gradients.
const END: BucketEnd = BucketEnd::Bytes(40_000);

/// Runs two steps of simulated backward passes as one rank, and returns the loss and gradients of the second.
fn run(
    mut communicator: Communicator,
    assignment: Assignment,
    bucket_end: BucketEnd,
    how: How,
    from: f64,
) -> Result<(f32, Vec<OwnedPart>)> {
    let rank = communicator.rank();
    let device = Device::cpu(rank, &DeviceOptions::default())?;
    let (parameters, uses) = parameters(&device, how.2);
    let options = options(assignment, rank, bucket_end, how);
    let mut reduction = GradientReduction::new(&device, &parameters, options)?;
    share(&mut communicator, &reduction, &parameters)?;
    reduction.reduce_from(from);
    let group = divided(communicator, assignment.group())?;
    for _ in 0..2 {
        for micro_batch in assignment.numbers(rank) {
            let mut sink = reduction.sink(&group);
            for weight in uses.iter().rev() {
                let id = weight.use_id().unwrap();
                let target = sink.target(id, weight).unwrap();
                let mut values = gradient(id.0, micro_batch, weight.shape().elements());
                if target.accumulate {
                    let sum = read(&target.tensor)?;
                    values.iter_mut().zip(&sum).for_each(|(v, sum)| *v += sum);
                }
                write(&target.tensor, &values)?;
                sink.ready(id).unwrap();
            }
            let loss = Tensor::from_host(&device, &gradient(99, micro_batch, 1), [1], Category::Activation)?;
            drop(sink);
            reduction.end_micro_batch(Some(&loss))?;
        }
        reduction.finish(&group)?;
    }
    let parts = reduction.shards().own().iter().zip(reduction.gradients());
    let parts = parts.map(|(owned, gradient)| {
        assert_eq!(owned.shard.range.len(), gradient.elements());
        Ok((owned.parameter, owned.shard.range.start, read(gradient)?))
    });
    Ok((reduction.loss().unwrap().to_vec::<f32>()?[0], parts.collect::<Result<_>>()?))
}

/// Divides the group of all ranks into groups of `group` neighbours.
fn divided(communicator: Communicator, group: usize) -> Result<DividedGroup> {
    let ranks = communicator.world_size();
    let rank = communicator.rank();
    let mut groups = GridGroups::new(communicator, RankGrid::new(&[(Axis::Data, ranks)], rank)?)?;
    if group > 1 {
        groups.divide(Axis::Data, group)?;
    }
    Ok(groups.divided(Axis::Data)?)
}

/// Assembles the parts of several ranks; every element must be present once.
fn assemble<'a>(ranks: impl Iterator<Item = &'a (f32, Vec<OwnedPart>)>) -> Vec<Vec<f32>> {
    let mut all = SHAPES.map(|elements| vec![None; elements]);
    for (parameter, first, values) in ranks.flat_map(|(_, parts)| parts) {
        for (index, value) in values.iter().enumerate() {
            assert!(all[*parameter][first + index].replace(*value).is_none());
        }
    }
    all.map(|values| values.into_iter().map(Option::unwrap).collect()).into()
}

/// Returns the sums of the gradients of all parameters, by definition.
fn references(micro_batches: usize, lanes: usize, dtype: DType) -> Vec<Vec<f32>> {
    let reference =
        |(index, elements): (usize, &usize)| expected(index as u32, *elements, micro_batches, lanes, dtype);
    let mut references: Vec<_> = SHAPES.iter().enumerate().map(reference).collect();
    let second_use = expected(SHAPES.len() as u32, SHAPES[0], micro_batches, lanes, dtype);
    let uses = references[0].iter_mut().zip(&second_use);
    uses.for_each(|(sum, other)| *sum = rounded(*sum + other, dtype));
    references
}

/// Gives ranks access to each other's buckets and sharded weights.
fn share(
    communicator: &mut Communicator,
    reduction: &GradientReduction,
    parameters: &Parameters,
) -> Result<()> {
    let shared = reduction.shared(parameters)?;
    let regions: Vec<_> = shared.list().map(Tensor::region).collect();
    let options = PeerAccessOptions { layout: shared.layout(), ..PeerAccessOptions::default() };
    communicator.group.share(&regions, options)?;
    Ok(())
}

#[test]
fn every_grid_gives_the_defined_sum() {
    let all: &[(usize, usize, &[usize])] = &[
        (1, 1, &[1]),
        (1, 3, &[1]),
        (2, 4, &[1, 2]),
        (3, 3, &[2]),
        (4, 4, &[1, 2, 4]),
        (8, 8, &[1, 2, 3, 4, 8]),
        (4, 12, &[1, 2, 4]),
        (6, 12, &[4]),
        (12, 12, &[5]),
    ];
    for (lanes, micro_batches, sizes) in all.iter().copied() {
        let loss = expected(99, 1, micro_batches, lanes, DType::F32)[0];
        let references = [DType::F32, DType::Bf16].map(|dtype| references(micro_batches, lanes, dtype));
        for data in sizes.iter().copied() {
            // A library adds the ranks' sums in an order of its own.
            let has_order =
                |how: &How| how.0 == Reduction::Tree || lanes.is_power_of_two() && data.is_power_of_two();
            // One bucket for each gradient, for some gradients, and for all.
            let trees = [1, 1 << 20].into_iter().flat_map(|bytes| [(bytes, ALL[0]), (bytes, ALL[1])]);
            for (bucket_bytes, how) in ALL.into_iter().filter(has_order).map(|how| (40_000, how)).chain(trees)
            {
                // With and without peer access; reduced during backward, and after it.
                let overs = [direct::apart as direct::Over, direct::over];
                for (over, from) in
                    overs.into_iter().flat_map(|over| [0.0, 0.5, 1.0].map(|from| (over, from)))
                {
                    let runs = Assignment::contiguous(lanes, data).with_lanes_of(micro_batches / lanes);
                    let end = BucketEnd::Bytes(bucket_bytes);
                    let body =
                        move |communicator: Communicator| run(over(communicator), runs, end, how, from);
                    let ranks = threads::run(data, threads::Options::default(), body).unwrap();
                    let reference = &references[usize::from(how.2 == DType::Bf16)];
                    let name = format!("{lanes} lanes, {data} ranks, {bucket_bytes}, {how:?}, from {from}");
                    assert!(ranks.iter().all(|(actual, _)| *actual == loss), "{name}");
                    match how.1 > 0 {
                        true => assert_eq!(&assemble(ranks.iter()), reference, "{name}"),
                        false => ranks
                            .iter()
                            .for_each(|r| assert_eq!(&assemble([r].into_iter()), reference, "{name}")),
                    }
                }
            }
        }
    }
}

/// Returns a value that identifies its element, exact in bf16 too.
fn mark(parameter: usize, element: usize) -> f32 {
    (1 + parameter + (element / 4096) * 16) as f32
}

#[test]
fn every_rank_gets_the_weights_that_others_own() {
    let kinds = [(DType::F32, direct::apart as direct::Over), (DType::Bf16, direct::apart)];
    let kinds = kinds.into_iter().chain([(DType::Bf16, direct::over as direct::Over)]);
    for (ranks, (dtype, over)) in [1, 2, 3, 4, 7].into_iter().flat_map(|n| kinds.clone().map(move |k| (n, k)))
    {
        let body = move |communicator: Communicator| -> Result<()> {
            let mut communicator = over(communicator);
            let device = Device::cpu(communicator.rank(), &DeviceOptions::default())?;
            let (parameters, _) = parameters(&device, dtype);
            let runs = Assignment::contiguous(ranks, ranks);
            let options = options(runs, communicator.rank(), END, (Reduction::Tree, 1, DType::F32));
            let reduction = GradientReduction::new(&device, &parameters, options)?;
            let weights: Vec<_> = parameters.list().iter().map(|p| p.weight.tensor().unwrap()).collect();
            for owned in reduction.shards().own() {
                let values: Vec<_> = owned.shard.range.clone().map(|i| mark(owned.parameter, i)).collect();
                write(&owned.slice(&weights[owned.parameter])?, &values)?;
            }
            share(&mut communicator, &reduction, &parameters)?;
            gather_weights(&communicator.group, &reduction, &parameters, ..1)?;
            gather_weights(&communicator.group, &reduction, &parameters, 1..)?;
            // Groups arrive one by one; the first use of a weight waits for its whole group.
            for (number, group) in reduction.weight_groups().iter().filter(|_| ranks > 1).enumerate() {
                assert!(group.iter().all(|parameter| weights[*parameter].is_arriving()), "group {number}");
                for parameter in group {
                    assert!(weights[*parameter].region().bytes > 0);
                }
                assert_eq!(device.take_waits().len(), 1, "group {number}");
            }
            assert!(!weights.iter().any(Tensor::is_arriving));
            for (parameter, weight) in weights.iter().enumerate() {
                let actual = read(weight)?;
                let expected: Vec<_> = (0..weight.elements()).map(|i| mark(parameter, i)).collect();
                assert_eq!(actual, expected, "{ranks} ranks, {dtype:?}, parameter {parameter}");
            }
            Ok(())
        };
        threads::run(ranks, threads::Options::default(), body).unwrap();
    }
}

#[test]
fn disjoint_sums_are_gathered_exactly() {
    let values = gradient(3, 0, 777);
    let expected = values.iter().map(|value| value * value).collect::<Vec<_>>();
    for ranks in [1, 2, 3, 4, 8] {
        let expected = expected.clone();
        let body = move |communicator: Communicator| -> Result<()> {
            let device = Device::cpu(communicator.rank(), &DeviceOptions::default())?;
            let own =
                |(index, sum): (usize, &f32)| if index % ranks == communicator.rank() { *sum } else { 0.0 };
            let own: Vec<_> = expected.iter().enumerate().map(own).collect();
            let sums = Tensor::from_host(&device, &own, [own.len()], Category::OptimizerState)?;
            gather_sums(&communicator.group, &sums)?;
            assert_eq!(sums.to_vec::<f32>()?, expected);
            Ok(())
        };
        threads::run(ranks, threads::Options::default(), body).unwrap();
    }
}

#[test]
fn rows_of_uneven_runs_are_gathered() {
    let contiguous = [(4, 1), (4, 4), (8, 3), (5, 4)].map(|(lanes, ranks)| (lanes, ranks, 1));
    let others = [(4, 4, 4), (8, 3, 3), (5, 4, 4), (3, 3, 3), (8, 4, 2), (9, 6, 3), (7, 6, 2)];
    for (lanes, ranks, group) in contiguous.into_iter().chain(others) {
        let runs = Assignment::in_groups(lanes, ranks, group).padded().with_lanes_of(2);
        let body = move |communicator: Communicator| -> Result<()> {
            let rank = communicator.rank();
            let width = 6;
            let device = Device::cpu(rank, &DeviceOptions::default())?;
            let row = |number: usize| gradient(5, number, width);
            let own =
                |number: usize| if runs.owner(number).0 == rank { row(number) } else { vec![0.0; width] };
            let values: Vec<f32> = (0..runs.total()).flat_map(own).collect();
            let rows = Tensor::from_host(&device, &values, [runs.total(), width], Category::Buffer)?;
            gather_rows(&communicator.group, &rows, &runs)?;
            assert_eq!(rows.to_vec::<f32>()?, (0..runs.total()).flat_map(row).collect::<Vec<_>>());
            Ok(())
        };
        threads::run(ranks, threads::Options::default(), body).unwrap();
    }
}

#[test]
fn only_the_tree_takes_scratch() {
    for (how, takes) in ALL.into_iter().zip([true, true, false, false, true, false]) {
        let body = move |communicator: Communicator| -> Result<()> {
            let device = Device::cpu(communicator.rank(), &DeviceOptions::default())?;
            let (parameters, _) = parameters(&device, DType::F32);
            let runs = Assignment::contiguous(2, 2);
            let options = options(runs, communicator.rank(), END, how);
            let _reduction = GradientReduction::new(&device, &parameters, options)?;
            let held = device.with_allocator(|a| a.category_bytes().get(Category::Communication));
            assert_eq!(held > 0, takes, "{how:?}");
            Ok(())
        };
        threads::run(2, threads::Options::default(), body).unwrap();
    }
}

#[test]
fn only_the_tree_among_several_ranks_shares() {
    for (ranks, how) in [1, 2].into_iter().flat_map(|ranks| ALL.map(|how| (ranks, how))) {
        let body = move |communicator: Communicator| -> Result<()> {
            let device = Device::cpu(communicator.rank(), &DeviceOptions::default())?;
            let (parameters, _) = parameters(&device, DType::F32);
            let runs = Assignment::contiguous(2, ranks);
            let options = options(runs, communicator.rank(), END, how);
            let reduction = GradientReduction::new(&device, &parameters, options)?;
            let shares = !reduction.shared(&parameters)?.is_empty();
            assert_eq!(shares, ranks > 1 && how.0 == Reduction::Tree, "{ranks} {how:?}");
            Ok(())
        };
        threads::run(ranks, threads::Options::default(), body).unwrap();
    }
}

#[test]
fn the_tree_adds_in_rank_order() {
    let body = |communicator: Communicator| -> Result<Vec<f32>> {
        let rank = communicator.rank();
        let device = Device::cpu(rank, &DeviceOptions::default())?;
        let bucket = Tensor::from_host(&device, &gradient(7, rank, 512), [512], Category::Gradient)?;
        let scratch = Tensor::from_host(&device, &[f32::NAN; 512], [512], Category::Communication)?;
        let parts = [bucket];
        let sum = TreeSum { parts: &parts, scratch: &scratch, everywhere: true };
        let tree = RankTree::balanced(communicator.world_size());
        tree_sums(&communicator.group, &[sum], &tree, false, StreamKind::Reduce)?;
        Ok(parts[0].to_vec()?)
    };
    for ranks in [1, 2, 4] {
        let expected = expected(7, 512, ranks, ranks, DType::F32);
        for sum in threads::run(ranks, threads::Options::default(), body).unwrap() {
            assert_eq!(sum, expected);
        }
    }
}

#[test]
fn missing_gradients_are_named() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let (parameters, uses) = parameters(&device, DType::F32);
    let group = DividedGroup::undivided(Communicator::solo().group);
    let runs = Assignment::contiguous(1, 1);
    let options = options(runs, 0, BucketEnd::Bytes(512), ALL[0]);
    let mut reduction = GradientReduction::new(&device, &parameters, options).unwrap();
    let mut sink = reduction.sink(&group);
    for weight in uses.iter().filter(|weight| weight.use_id() != Some(UseId(2))) {
        let id = weight.use_id().unwrap();
        sink.target(id, weight).unwrap().tensor.zero().unwrap();
        sink.ready(id).unwrap();
    }
    let loss = Tensor::from_host(&device, &[0.0_f32], [1], Category::Activation).unwrap();
    drop(sink);
    reduction.end_micro_batch(Some(&loss)).unwrap();
    match reduction.finish(&group) {
        Err(ParallelError::MissingGradient { parameter }) => assert_eq!(parameter, "p2"),
        other => panic!("{other:?}"),
    }
}
