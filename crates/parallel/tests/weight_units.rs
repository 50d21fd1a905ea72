//! Sharded weights: gathered before their use, they give the bits of whole weights. Between passes a rank
//! holds only its shards and the buffers.

use std::rc::Rc;
use std::sync::Arc;

use autograd::{AutogradError, Gradients, Mode, Pass, Segment, Tape, Var, Weight, ops, recompute};
use collective::threads::{self, Options};
use collective::{CallKind, Communicator};
use device::{Category, DType, Description, Device, DeviceOptions};
use nn::{Init, Parameters, Tuning};
use parallel::data::{BucketEnd, BucketLayout, UnitOptions, WeightLayout, WeightUnits, WorkKind};
use tensor::Tensor;
use tensor::ops::Activation;
use tensor::ops::norm::CHUNK;

/// Input width of each layer; the last is also the output width.
const WIDTHS: [usize; 4] = [72, 72, 120, 72];
const ROWS: usize = 4;
/// Numbers of units gathered ahead.
const PREFETCHES: [usize; 4] = [0, 1, 2, 64];

type Layers = Rc<[(Weight, Option<Weight>)]>;

/// Creates three units: a table without bias, two layers with biases, and a last layer that uses the table
/// again. `freeze` are globs of frozen parameters.
fn model(parameters: Parameters, freeze: &[&str]) -> (Parameters, Layers) {
    let freeze: Vec<_> = freeze.iter().map(|glob| (*glob).to_owned()).collect();
    let mut parameters = parameters.tuned(Arc::new(Tuning::new(&freeze).unwrap()));
    let mut layers = Vec::new();
    for (index, widths) in WIDTHS.windows(2).enumerate() {
        let inputs = widths[0];
        let outputs = widths[1];
        let init = Init::uniform_fan_in(widths[0]);
        parameters.begin_unit();
        let weight = parameters.create(&format!("{index}.weight"), [outputs, inputs], init).unwrap();
        let bias = || parameters.create(&format!("{index}.bias"), [outputs], init).unwrap();
        let bias = (index > 0).then(bias);
        layers.push((weight, bias));
    }
    layers.push((parameters.reuse("0.weight").unwrap(), None));
    (parameters, layers.into())
}

fn whole(device: &Device, freeze: &[&str]) -> (Parameters, Layers) {
    model(Parameters::new(device, 7, DType::F32), freeze)
}

/// The same model with sharded weights.
struct Sharded {
    device: Device,
    parameters: Parameters,
    layers: Layers,
    units: WeightUnits,
}

impl Sharded {
    fn new(device: Device, (rank, ranks): (usize, usize), prefetch: usize, freeze: &[&str]) -> Self {
        let (parameters, layers) = model(Parameters::new(&device, 7, DType::F32).released(), freeze);
        let buckets = BucketLayout::from_parameters(&parameters, DType::F32, BucketEnd::Unit, ranks);
        let layout = WeightLayout::new(&parameters, &buckets, ranks);
        let options = UnitOptions { rank, prefetch };
        let units = WeightUnits::new((&device, None), &parameters, layout, options).unwrap();
        Sharded { device, parameters, layers, units }
    }

    fn on(communicator: &Communicator, prefetch: usize, freeze: &[&str]) -> Self {
        let rank = communicator.rank();
        let ranks = communicator.world_size();
        let device = Device::cpu(rank, &DeviceOptions::default()).unwrap();
        Sharded::new(device, (rank, ranks), prefetch, freeze)
    }

    /// Runs the passes of a step.
    fn step(&self, communicator: &Communicator, segment: usize) -> Vec<Vec<f32>> {
        self.units.begin(WorkKind::Step, &communicator.group).unwrap();
        step(&self.device, &self.layers, segment)
    }

    fn held(&self, category: Category) -> usize {
        self.device.with_allocator(|allocator| allocator.category_bytes()).get(category) as usize
    }
}

/// Layers of a model that are recomputed together.
struct LayerRange(Layers, std::ops::Range<usize>);

impl Segment for LayerRange {
    type Error = AutogradError;

    fn run(&self, tape: &Tape, inputs: Vec<Var>) -> autograd::Result<Vec<Var>> {
        let layers = self.0[self.1.clone()].iter();
        let forward = |x: Var, (weight, bias): &(Weight, Option<Weight>)| {
            ops::linear(tape, x, weight, bias.as_ref(), Activation::Gelu)
        };
        Ok(vec![layers.into_iter().try_fold(inputs.into_iter().next().unwrap(), forward)?])
    }
}

/// Runs forward, with segments of `segment` layers that backward recomputes; none if it is 0.
fn forward(tape: &Tape, layers: &Layers, segment: usize) -> autograd::Result<Var> {
    let values: Vec<f32> = (0..ROWS * WIDTHS[0]).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = tape.constant(Tensor::from_host(tape.device(), &values, [ROWS, WIDTHS[0]], Category::Input)?);
    let all = LayerRange(Rc::clone(layers), 0..layers.len());
    let mut vars = vec![x];
    if segment == 0 {
        vars = all.run(tape, vars)?;
    }
    for first in (0..layers.len()).step_by(segment.max(1)).filter(|_| segment > 0) {
        let range = first..(first + segment).min(layers.len());
        vars = recompute(tape, LayerRange(Rc::clone(layers), range), vars)?;
    }
    Ok(vars.remove(0))
}

/// Returns the output of forward, followed by the gradients of backward.
fn step(device: &Device, layers: &Layers, segment: usize) -> Vec<Vec<f32>> {
    let tape = Tape::new(device, Mode::Train).with_pass(Pass::default());
    let output = forward(&tape, layers, segment).unwrap();
    let seed = output.tensor().clone();
    let mut gradients = Gradients::default();
    drop(tape.backward_from(vec![(output.source(), seed)], &mut gradients).unwrap());
    let all = gradients.iter().map(|(_, gradient)| gradient.to_vec().unwrap());
    std::iter::once(output.tensor().to_vec().unwrap()).chain(all).collect()
}

/// Runs `body` as each of `ranks` ranks, for each number of units to gather ahead.
fn on_ranks<T: Send + 'static>(ranks: usize, body: fn(&Communicator, usize) -> T) -> Vec<(usize, T)> {
    let run_ranks = |prefetch: usize| {
        let body = move |communicator: Communicator| Ok::<_, String>(body(&communicator, prefetch));
        threads::run(ranks, Options::default(), body).unwrap().into_iter().map(move |it| (prefetch, it))
    };
    PREFETCHES.into_iter().flat_map(run_ranks).collect()
}

/// Elements of the units on `ranks` ranks: the table, and weights with their biases.
fn elements(ranks: usize) -> [usize; 3] {
    let unit = |parameters: &[usize]| {
        let elements: usize = parameters.iter().map(|elements| elements.next_multiple_of(CHUNK)).sum();
        elements.next_multiple_of(CHUNK * ranks)
    };
    [unit(&[72 * 72]), unit(&[72 * 120, 120]), unit(&[120 * 72, 72])]
}

#[test]
fn gathered_weights_give_the_bits_of_whole_ones() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let (_parameters, layers) = whole(&device, &[]);
    let expected = step(&device, &layers, 0);
    for ranks in 1..=4 {
        let steps = |communicator: &Communicator, prefetch: usize| {
            let sharded = Sharded::on(communicator, prefetch, &[]);
            // First without earlier work to learn the order from, then with, and in other orders.
            [0, 0, 1, 1, 2, 3, 0].map(|segment| sharded.step(communicator, segment))
        };
        for (prefetch, steps) in on_ranks(ranks, steps) {
            for (number, actual) in steps.into_iter().enumerate() {
                assert_eq!(actual, expected, "{ranks} ranks, prefetch {prefetch}, step {number}");
            }
        }
    }
}

#[test]
fn frozen_weights_are_gathered_too() {
    const FREEZE: [&[&str]; 3] = [&["0.*"], &["1.bias", "2.*"], &["*.weight"]];
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let expected = FREEZE.map(|freeze| step(&device, &whole(&device, freeze).1, 0));
    for ranks in [1, 2, 3] {
        let steps = |communicator: &Communicator, prefetch: usize| {
            FREEZE.map(|freeze| {
                let sharded = Sharded::on(communicator, prefetch, freeze);
                sharded.step(communicator, 1);
                sharded.step(communicator, 0)
            })
        };
        for (prefetch, actual) in on_ranks(ranks, steps) {
            assert_eq!(actual, expected, "{ranks} ranks, prefetch {prefetch}");
        }
    }
}

#[test]
fn between_steps_a_rank_holds_its_parts_and_the_buffers() {
    for ranks in 1..=4 {
        let bytes = |communicator: &Communicator, prefetch: usize| {
            let sharded = Sharded::on(communicator, prefetch, &[]);
            let held = || {
                let other = sharded.device.statistics().allocated() as usize;
                [sharded.held(Category::Parameter), sharded.held(Category::Communication), other]
            };
            let before = held();
            for segment in [0, 0, 2] {
                sharded.step(communicator, segment);
                assert_eq!(held(), before);
            }
            sharded.units.outdate();
            assert_eq!(held(), before);
            before
        };
        let units = elements(ranks);
        let all: usize = units.iter().sum();
        let largest = units.into_iter().max().unwrap();
        for (prefetch, [parts, buffers, allocated]) in on_ranks(ranks, bytes) {
            assert_eq!((parts, allocated), (4 * all / ranks, parts + buffers), "{ranks} {prefetch}");
            let most = if prefetch == 0 { largest } else { all };
            assert!(4 * largest <= buffers && buffers <= 4 * most, "{ranks} {prefetch}: {buffers}");
            assert!(prefetch < 64 || buffers == 4 * all);
        }
    }
}

/// Units with two uses in a row are gathered once for both.
#[test]
fn gathering_ahead_adds_no_call() {
    let calls = |communicator: &Communicator, prefetch: usize| {
        let sharded = Sharded::on(communicator, prefetch, &[]);
        let count = || communicator.group.traffic().get(CallKind::AllGather).calls;
        let gathers = [0, 0, 0, 1, 1, 1].map(|segment| {
            let before = count();
            sharded.step(communicator, segment);
            sharded.units.outdate();
            count() - before
        });
        let before = count();
        sharded.step(communicator, 1);
        sharded.step(communicator, 1);
        (gathers, count() - before)
    };
    for (prefetch, (gathers, repeated)) in on_ranks(2, calls) {
        // The first work of a kind has no known order, so nothing is gathered ahead.
        let [plain, recomputed] = [gathers[0], gathers[3]];
        assert_eq!(gathers, [plain, plain, plain, recomputed, recomputed, recomputed], "prefetch {prefetch}");
        match prefetch {
            // Table, layers, table; and back. The first input has no gradient, for which backward would need
            // the table; recomputation needs it.
            0 => assert_eq!((plain, recomputed), (6, 7)),
            64 => assert_eq!((plain, recomputed, repeated), (3, 3, 3)),
            _ => assert!(plain <= 6 && recomputed <= 7 && repeated <= 14, "prefetch {prefetch}"),
        }
    }
}

#[test]
fn new_values_are_visible_after_outdate() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let (parameters, layers) = whole(&device, &[]);
    let old = step(&device, &layers, 0);
    for parameter in parameters.list() {
        halve(&parameter.weight.tensor().unwrap());
    }
    let new = step(&device, &layers, 0);
    for ranks in [1, 2, 3] {
        let steps = |communicator: &Communicator, prefetch: usize| {
            let sharded = Sharded::on(communicator, prefetch, &[]);
            let first = sharded.step(communicator, 0);
            for number in 0..sharded.parameters.list().len() {
                if let Some((_, part)) = sharded.units.part(number).unwrap() {
                    halve(&part);
                }
            }
            sharded.units.outdate();
            [first, sharded.step(communicator, 0), sharded.step(communicator, 1)]
        };
        for (prefetch, actual) in on_ranks(ranks, steps) {
            assert_eq!(actual, [old.clone(), new.clone(), new.clone()], "{ranks} {prefetch}");
        }
    }
}

fn halve(tensor: &Tensor) {
    let values = tensor.to_vec::<f32>().unwrap().into_iter().map(|value| value / 2.0);
    tensor.set(&values.collect::<Vec<_>>()).unwrap();
}

/// A validation between steps uses units in another order.
#[test]
fn work_of_both_kinds_have_the_bits() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let (_parameters, layers) = whole(&device, &[]);
    let expected = step(&device, &layers, 0);
    let output = step(&device, &layers, 0).remove(0);
    let steps = |communicator: &Communicator, prefetch: usize| {
        let sharded = Sharded::on(communicator, prefetch, &[]);
        [(); 3].map(|()| {
            sharded.units.begin(WorkKind::Forward, &communicator.group).unwrap();
            let tape = Tape::new(&sharded.device, Mode::Evaluate);
            let output = forward(&tape, &sharded.layers, 0).unwrap().tensor().to_vec::<f32>().unwrap();
            (output, sharded.step(communicator, 0))
        })
    };
    for (prefetch, actual) in on_ranks(3, steps) {
        assert!(
            actual.iter().all(|results| *results == (output.clone(), expected.clone())),
            "prefetch {prefetch}"
        );
    }
}

#[test]
fn meta_ranks_gather_the_same_bytes() {
    let bytes = |sharded: &Sharded, communicator: &Communicator| {
        let statistics = || {
            let statistics = sharded.device.statistics();
            [statistics.allocated(), statistics.peak_allocated()]
        };
        let before = statistics();
        sharded.units.begin(WorkKind::Step, &communicator.group).unwrap();
        let tape = Tape::new(&sharded.device, Mode::Train).with_pass(Pass::default());
        drop(forward(&tape, &sharded.layers, 0).unwrap());
        drop(tape);
        [before, statistics()]
    };
    for (number, prefetch) in PREFETCHES.into_iter().enumerate() {
        let real = threads::run(2, Options::default(), move |communicator| {
            Ok::<_, String>(bytes(&Sharded::on(&communicator, prefetch, &[]), &communicator))
        });
        for (rank, real) in real.unwrap().into_iter().enumerate() {
            let device = Device::meta(rank, Description::host(), &DeviceOptions::default()).unwrap();
            let sharded = Sharded::new(device, (rank, 2), prefetch, &[]);
            assert_eq!(bytes(&sharded, &Communicator::counted(rank, 2)), real, "row {number}, rank {rank}");
        }
    }
}

#[test]
fn ranks_hold_each_initial_value_once() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let (parameters, _) = whole(&device, &[]);
    let expected = parameters.list().iter().map(|it| it.weight.tensor().unwrap().to_vec::<f32>().unwrap());
    let expected: Vec<_> = expected.collect();
    for ranks in [1, 2, 5] {
        let parts = threads::run(ranks, Options::default(), |communicator| {
            let sharded = Sharded::on(&communicator, 1, &["2.bias"]);
            let part = |number: usize| {
                let part = sharded.units.part(number).unwrap();
                part.map(|(first, part)| (number, first, part.to_vec::<f32>().unwrap()))
            };
            Ok::<_, String>((0..sharded.parameters.list().len()).filter_map(part).collect::<Vec<_>>())
        });
        let mut actual = vec![Vec::new(); expected.len()];
        for (number, first, part) in parts.unwrap().concat() {
            assert_eq!(first, actual[number].len(), "{ranks} ranks, parameter {number}");
            actual[number].extend(part);
        }
        assert_eq!(actual, expected, "{ranks} ranks");
    }
}

#[test]
fn a_use_before_the_first_work_is_refused() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let sharded = Sharded::new(device, (0, 2), 1, &[]);
    let refused = forward(&Tape::new(&sharded.device, Mode::Train), &sharded.layers, 0).unwrap_err();
    let source = std::error::Error::source(&refused).map(ToString::to_string).unwrap_or_default();
    let text = format!("{refused}: {source}");
    assert!(text.contains("weights were used before their ranks were connected"), "{text}");
}
