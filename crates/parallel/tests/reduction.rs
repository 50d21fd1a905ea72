//! The reduction: the same sums, in the same order, however ranks and buckets divide the work.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

use autograd::{GradientSink, Weight};
use collective::{Communicator, threads};
use device::{Category, DType, Device, DeviceOptions, StreamKind};
use nn::{Init, Parameters};
use parallel::data::{GradientReduction, Lanes, ReductionOptions, tree_all_reduce};
use parallel::{ParallelError, Result};
use tensor::Tensor;

/// The gradient of a use in a micro-batch: values whose sum depends on the order of addition.
fn gradient(use_id: u32, micro_batch: usize, elements: usize) -> Vec<f32> {
    let key = philox::key_of_name(u64::from(use_id), "gradient");
    let block = |i: usize| philox::normals(philox::philox4x32(key, [i as u32, micro_batch as u32, 0, 0]));
    (0..elements).map(|i| block(i)[0] * 10_f32.powi((i % 7) as i32)).collect()
}

/// The sum that the design asks for, computed directly.
fn expected(use_id: u32, elements: usize, micro_batches: usize, lanes: usize) -> Vec<f32> {
    let per_lane = micro_batches / lanes;
    let add = |a: Vec<f32>, b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    let lane = |lane: usize| {
        (1..per_lane).fold(gradient(use_id, lane * per_lane, elements), |sum, m| {
            add(sum, &gradient(use_id, lane * per_lane + m, elements))
        })
    };
    let mut level: Vec<Vec<f32>> = (0..lanes).map(lane).collect();
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| add(pair[0].clone(), &pair[1])).collect();
    }
    level.remove(0)
}

const SHAPES: [usize; 4] = [5, 300, 128, 1000];

/// Four parameters, the first of which is used twice.
fn parameters(device: &Device) -> (Parameters, Vec<Weight>) {
    let mut parameters = Parameters::new(device, 1, DType::F32);
    let mut uses: Vec<_> = (0..SHAPES.len())
        .map(|i| parameters.create(&format!("p{i}"), [SHAPES[i]], Init::Constant(0.0)).unwrap())
        .collect();
    uses.push(parameters.reuse("p0").unwrap());
    (parameters, uses)
}

/// Runs two steps of made-up backward passes as one rank and returns the gradients and loss of the second.
fn run(
    mut communicator: Communicator,
    lanes: usize,
    micro_batches: usize,
    bucket_bytes: usize,
) -> Result<Vec<Vec<f32>>> {
    let (rank, data) = (communicator.rank(), communicator.world_size());
    let device = Device::cpu(rank, &DeviceOptions::default())?;
    let (parameters, uses) = parameters(&device);
    let lanes = Lanes::new(lanes, micro_batches, data)?;
    let mut reduction =
        GradientReduction::new(&device, &parameters, ReductionOptions { lanes, data, bucket_bytes })?;
    let each = micro_batches / data;
    for _ in 0..2 {
        for micro_batch in rank * each..(rank + 1) * each {
            let mut sink = reduction.sink(&mut *communicator.data);
            for weight in uses.iter().rev() {
                let id = weight.use_id();
                let target = sink.target(weight).unwrap();
                let mut values = gradient(id.0, micro_batch, weight.tensor().elements());
                if target.accumulate {
                    let sum = target.tensor.to_vec::<f32>()?;
                    values.iter_mut().zip(&sum).for_each(|(v, sum)| *v += sum);
                }
                target.tensor.set(&values)?;
                sink.ready(id).unwrap();
            }
            let loss = Tensor::from_host(&device, &gradient(99, micro_batch, 1), [1], Category::Activation)?;
            reduction.add_loss(&loss)?;
        }
        reduction.finish(&mut *communicator.data)?;
    }
    let mut results = vec![reduction.loss()?.to_vec::<f32>()?];
    for gradient in reduction.gradients() {
        results.push(gradient.to_vec::<f32>()?);
    }
    Ok(results)
}

#[test]
fn every_grid_gives_the_sum_of_the_design() {
    for (lanes, micro_batches) in [(1, 1), (1, 3), (2, 4), (4, 4), (8, 8), (4, 12)] {
        let mut reference = vec![expected(99, 1, micro_batches, lanes)];
        for (index, elements) in SHAPES.iter().enumerate() {
            reference.push(expected(index as u32, *elements, micro_batches, lanes));
        }
        let second_use = expected(SHAPES.len() as u32, SHAPES[0], micro_batches, lanes);
        reference[1].iter_mut().zip(&second_use).for_each(|(sum, other)| *sum += other);
        for data in [1, 2, 4, 8].into_iter().filter(|data| *data <= lanes) {
            for bucket_bytes in [1, 2048, 1 << 20] {
                let body = move |communicator| run(communicator, lanes, micro_batches, bucket_bytes);
                for (rank, results) in
                    threads::run(data, threads::Options::default(), body).unwrap().iter().enumerate()
                {
                    assert_eq!(
                        results, &reference,
                        "{lanes} lanes, {data} ranks, rank {rank}, {bucket_bytes}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_tree_adds_in_rank_order() {
    let body = |mut communicator: Communicator| -> Result<Vec<f32>> {
        let rank = communicator.rank();
        let device = Device::cpu(rank, &DeviceOptions::default())?;
        let bucket = Tensor::from_host(&device, &gradient(7, rank, 512), [512], Category::Gradient)?;
        let scratch = Tensor::from_host(&device, &[f32::NAN; 512], [512], Category::Communication)?;
        tree_all_reduce(&mut *communicator.data, &bucket, &scratch, StreamKind::Reduce)?;
        Ok(bucket.to_vec()?)
    };
    for ranks in [1, 2, 4] {
        let expected = expected(7, 512, ranks, ranks);
        for sum in threads::run(ranks, threads::Options::default(), body).unwrap() {
            assert_eq!(sum, expected);
        }
    }
}

#[test]
fn a_gradient_that_never_comes_is_named() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let (parameters, uses) = parameters(&device);
    let lanes = Lanes::new(1, 1, 1).unwrap();
    let options = ReductionOptions { lanes, data: 1, bucket_bytes: 512 };
    let mut reduction = GradientReduction::new(&device, &parameters, options).unwrap();
    let mut communicator = Communicator::solo();
    let mut sink = reduction.sink(&mut *communicator.data);
    for weight in uses.iter().filter(|weight| weight.use_id().0 != 2) {
        sink.target(weight).unwrap().tensor.zero().unwrap();
        sink.ready(weight.use_id()).unwrap();
    }
    let loss = Tensor::from_host(&device, &[0.0_f32], [1], Category::Activation).unwrap();
    reduction.add_loss(&loss).unwrap();
    match reduction.finish(&mut *communicator.data) {
        Err(ParallelError::MissingGradient { parameter }) => assert_eq!(parameter, "p2"),
        other => panic!("{other:?}"),
    }
}
