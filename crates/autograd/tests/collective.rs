//! Collectives as operators. Compares values and gradients of N ranks with f64 sums over all ranks, the bits
//! of sums with the tree on one rank, and the memory of Meta ranks with that of real ones.

use autograd::{Gradients, Mode, Pass, Result, Tape, Var, ops};
use collective::threads::{Options, run};
use collective::{Axis, AxisGroups, Communicator};
use device::{Category, DType, Description, Device, DeviceOptions, Request};
use tensor::{Shape, Tensor};

const AXIS: Axis = Axis::Data;
const ROWS: usize = 12;
const COLUMNS: usize = 5;

/// A collective, and the same function in f64 from all ranks' operands to all ranks' results.
struct Case {
    name: &'static str,
    call: fn(&Tape, Var) -> Result<Var>,
    reference: fn(&[Vec<f64>]) -> Vec<Vec<f64>>,
}

const CASES: [Case; 5] = [
    Case {
        name: "all_reduce",
        call: |tape, x| ops::all_reduce(tape, x, AXIS),
        reference: |ranks| vec![sum(ranks); ranks.len()],
    },
    Case {
        name: "all_gather",
        call: |tape, x| ops::all_gather(tape, x, AXIS),
        reference: |ranks| vec![ranks.concat(); ranks.len()],
    },
    Case {
        name: "reduce_scatter",
        call: |tape, x| ops::reduce_scatter(tape, x, AXIS),
        reference: |ranks| sum(ranks).chunks(ROWS * COLUMNS / ranks.len()).map(<[f64]>::to_vec).collect(),
    },
    Case {
        name: "exchange",
        call: |tape, x| ops::exchange(tape, x, AXIS, 1),
        reference: |ranks| {
            (0..ranks.len()).map(|r| ranks[(r + ranks.len() - 1) % ranks.len()].clone()).collect()
        },
    },
    Case {
        name: "composed",
        call: |tape, x| {
            let scattered = ops::reduce_scatter(tape, x, AXIS)?;
            let shifted = ops::exchange(tape, scattered, AXIS, -1)?;
            ops::all_reduce(tape, ops::all_gather(tape, shifted, AXIS)?, AXIS)
        },
        reference: |ranks| {
            let parts: Vec<_> =
                sum(ranks).chunks(ROWS * COLUMNS / ranks.len()).map(<[f64]>::to_vec).collect();
            let n = parts.len();
            let gathered = (0..n).map(|r| parts[(r + 1) % n].clone()).collect::<Vec<_>>().concat();
            vec![gathered.iter().map(|value| value * n as f64).collect(); n]
        },
    },
];

fn sum(ranks: &[Vec<f64>]) -> Vec<f64> {
    (0..ranks[0].len()).map(|i| ranks.iter().map(|rank| rank[i]).sum()).collect()
}

/// Returns small integers, whose sums are exact in f32.
fn values(elements: usize, seed: usize) -> Vec<f32> {
    (0..elements).map(|i| ((i * 7 + seed * 13) % 17) as f32 - 8.0).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

fn tape_of(device: &Device, communicator: &Communicator) -> Tape {
    let groups = AxisGroups::default().with(AXIS, communicator.group.clone());
    Tape::new(device, Mode::Train).with_pass(Pass { groups, ..Pass::default() })
}

/// Runs a collective forward and backward, where the gradient of the result is `values` of the result's
/// length and the rank. Returns the result and the gradient of the operand.
fn forward_backward(device: &Device, communicator: &Communicator, case: &Case) -> [Vec<f32>; 2] {
    let rank = communicator.rank();
    let tape = tape_of(device, communicator);
    let x =
        Tensor::from_host(device, &values(ROWS * COLUMNS, rank), [ROWS, COLUMNS], Category::Input).unwrap();
    let leaf = tape.leaf(x);
    let source = leaf.source();
    let output = (case.call)(&tape, leaf).unwrap();
    let result = output.tensor().to_vec().unwrap();
    let shape = output.tensor().shape();
    let seed =
        Tensor::from_host(device, &values(shape.elements(), rank + 5), shape, Category::Input).unwrap();
    let mut leaves = tape.backward_from(vec![(output.source(), seed)], &mut Gradients::default()).unwrap();
    [result, leaves.take(source).unwrap().to_vec().unwrap()]
}

/// Returns the gradient of Σ result · seed over ranks by each rank's operand, element by element; collectives
/// are linear.
fn gradients(case: &Case, ranks: usize) -> Vec<Vec<f64>> {
    let zero = vec![vec![0.0; ROWS * COLUMNS]; ranks];
    let derivative = |rank: usize, element: usize| {
        let mut operands = zero.clone();
        operands[rank][element] = 1.0;
        let results = (case.reference)(&operands);
        let seeds = results.iter().enumerate().map(|(r, result)| wide(&values(result.len(), r + 5)));
        results
            .iter()
            .zip(seeds)
            .flat_map(|(result, seed)| result.clone().into_iter().zip(seed))
            .map(|(a, b)| a * b)
            .sum()
    };
    (0..ranks).map(|rank| (0..ROWS * COLUMNS).map(|element| derivative(rank, element)).collect()).collect()
}

#[test]
fn values_and_gradients_are_those_of_all_ranks() {
    for case in &CASES {
        for ranks in [1, 2, 3, 4, 6] {
            let results = run(ranks, Options::default(), |communicator| {
                let device = Device::cpu(communicator.rank(), &DeviceOptions::default()).unwrap();
                Ok::<_, String>(forward_backward(&device, &communicator, case))
            })
            .unwrap();
            let operands: Vec<_> = (0..ranks).map(|rank| wide(&values(ROWS * COLUMNS, rank))).collect();
            let expected = (case.reference)(&operands);
            let gradients = gradients(case, ranks);
            for (rank, [result, gradient]) in results.iter().enumerate() {
                assert_eq!(wide(result), expected[rank], "{} on rank {rank} of {ranks}", case.name);
                assert_eq!(wide(gradient), gradients[rank], "{}.backward, {rank} of {ranks}", case.name);
            }
        }
    }
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes()];
    tensor.read_bytes(&mut bytes).unwrap();
    bytes
}

/// Sums are rounded at every node of the tree, also if ranks do not divide the elements.
#[test]
fn sums_have_the_bits_of_the_tree() {
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        for ranks in [2, 3, 4] {
            let part = move |device: &Device, rank: usize| {
                let wave =
                    |i: usize| (i as f32 * 1.7 + rank as f32 * 0.9).sin() * 10.0_f32.powi(rank as i32 - 1);
                let values: Vec<f32> = (0..7).map(wave).collect();
                let wide = Tensor::from_host(device, &values, [7], Category::Input).unwrap();
                let request = Request::new(Category::Input, "part");
                if dtype == DType::F32 {
                    return wide;
                }
                let cast = Tensor::empty(device, [7], dtype, request).unwrap();
                tensor::ops::cast::into(&wide, &cast).unwrap();
                cast
            };
            let results = run(ranks, Options::default(), move |communicator| {
                let device = Device::cpu(communicator.rank(), &DeviceOptions::default()).unwrap();
                let tape = tape_of(&device, &communicator);
                let x = tape.constant(part(&device, communicator.rank()));
                Ok::<_, String>(bytes(ops::all_reduce(&tape, x, AXIS).unwrap().tensor()))
            });
            let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
            let parts: Vec<_> = (0..ranks).map(|rank| part(&device, rank)).collect();
            let target = part(&device, 0);
            let tree = tensor::ops::tree::SumTree::balanced(ranks);
            tensor::ops::tree::into_on(&target, &parts, &tree, device::StreamKind::Compute).unwrap();
            assert_eq!(results.unwrap(), vec![bytes(&target); ranks], "{dtype} on {ranks} ranks");
        }
    }
}

/// Returns the allocated bytes and their peak, after forward and after backward.
fn memory(device: &Device, communicator: &Communicator, case: &Case) -> Vec<(u64, u64)> {
    let tape = tape_of(device, communicator);
    let request = Request::new(Category::Input, "x");
    let operand = Tensor::zeros(device, [ROWS, COLUMNS], DType::F32, request).unwrap();
    let leaf = tape.leaf(operand);
    let source = leaf.source();
    let counters = || {
        let statistics = device.statistics();
        (statistics.allocated(), statistics.peak_allocated())
    };
    let output = (case.call)(&tape, leaf).unwrap();
    let forward = counters();
    let shape: Shape = output.tensor().shape();
    let seed = Tensor::zeros(device, shape, DType::F32, request).unwrap();
    let mut leaves = tape.backward_from(vec![(output.source(), seed)], &mut Gradients::default()).unwrap();
    let gradient = leaves.take(source).unwrap();
    let backward = counters();
    drop((gradient, output));
    vec![forward, backward, counters()]
}

#[test]
fn meta_ranks_have_the_bytes_of_ranks_with_memory() {
    for case in &CASES {
        for ranks in [2, 3] {
            let real = run(ranks, Options::default(), |communicator| {
                let device = Device::cpu(communicator.rank(), &DeviceOptions::default()).unwrap();
                Ok::<_, String>(memory(&device, &communicator, case))
            });
            for (rank, real) in real.unwrap().into_iter().enumerate() {
                let meta = Device::meta(rank, Description::host(), &DeviceOptions::default()).unwrap();
                let planned = memory(&meta, &Communicator::counted(rank, ranks), case);
                assert_eq!(planned, real, "{} on rank {rank} of {ranks}", case.name);
                assert!(real[0].0 > 0 && real[1].1 > real[0].0);
            }
        }
    }
}

#[test]
fn rows_that_ranks_do_not_divide_are_refused_by_all() {
    let errors = run(5, Options::default(), |communicator| {
        let device = Device::cpu(communicator.rank(), &DeviceOptions::default()).unwrap();
        let tape = tape_of(&device, &communicator);
        let request = Request::new(Category::Input, "x");
        let x = tape.constant(Tensor::zeros(&device, [ROWS, COLUMNS], DType::F32, request).unwrap());
        Ok::<_, String>(ops::reduce_scatter(&tape, x, AXIS).unwrap_err().to_string())
    });
    let expected =
        "reduce_scatter: collective: x has shape [12, 5], expected a number of rows that 5 ranks divide";
    assert_eq!(errors.unwrap(), vec![expected; 5]);
}
