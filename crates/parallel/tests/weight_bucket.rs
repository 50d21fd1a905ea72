//! Weights that are gathered before forward and before backward and released after each: the bits of weights
//! that stay, and no memory but the shards between.
#![allow(clippy::unwrap_used, clippy::panic)] // a test panics to report a failure

use autograd::{Gradients, Mode, Pass, Tape, Var, Weight, ops};
use collective::Communicator;
use collective::threads::{Options, run};
use device::{Category, DType, Description, Device, DeviceOptions};
use nn::{Init, Parameters};
use parallel::data::WeightBucket;
use tensor::Tensor;
use tensor::ops::Activation;

const SIZES: [usize; 3] = [24, 40, 8];

/// Weights and biases of two linear layers, some of them smaller than the alignment of a bucket.
fn weights(device: &Device) -> (Parameters, Vec<[Weight; 2]>) {
    let mut parameters = Parameters::new(device, 7, DType::F32);
    let layer = |index: usize| {
        let (inputs, outputs, init) = (SIZES[index], SIZES[index + 1], Init::uniform_fan_in(SIZES[index]));
        [
            parameters.create(&format!("{index}.weight"), [outputs, inputs], init).unwrap(),
            parameters.create(&format!("{index}.bias"), [outputs], init).unwrap(),
        ]
    };
    let layers = (0..SIZES.len() - 1).map(layer).collect();
    (parameters, layers)
}

fn forward(tape: &Tape, layers: &[[Weight; 2]]) -> autograd::Result<Var> {
    let values: Vec<f32> = (0..4 * SIZES[0]).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = tape.constant(Tensor::from_host(tape.device(), &values, [4, SIZES[0]], Category::Input)?);
    layers.iter().try_fold(x, |x, [weight, bias]| ops::linear(tape, x, weight, Some(bias), Activation::Gelu))
}

/// Output and gradients, with `around` called before forward, between forward and backward, and after.
fn run_once(device: &Device, layers: &[[Weight; 2]], mut around: impl FnMut(usize)) -> Vec<Vec<f32>> {
    let tape = Tape::new(device, Mode::Train).of(Pass::default());
    around(0);
    let output = forward(&tape, layers).unwrap();
    around(1);
    let seed = output.tensor().clone();
    let mut gradients = Gradients::default();
    drop(tape.backward_from(vec![(output.source(), seed)], &mut gradients).unwrap());
    around(2);
    let all = gradients.iter().map(|(_, gradient)| gradient.to_vec().unwrap());
    std::iter::once(output.tensor().to_vec().unwrap()).chain(all).collect()
}

/// Results with gathered weights, and the allocated bytes while they were released.
fn gathered(device: &Device, communicator: &Communicator) -> (Vec<Vec<f32>>, Vec<u64>) {
    let allocated = || device.statistics().allocated();
    let before = allocated();
    let (parameters, layers) = weights(device);
    let handles = parameters.list().iter().map(|parameter| parameter.weight.clone()).collect();
    let mut bucket = WeightBucket::new(&communicator.data, handles).unwrap();
    let mut released = vec![allocated() - before];
    let refused = forward(&Tape::new(device, Mode::Train), &layers).unwrap_err().to_string();
    assert_eq!(refused, "linear: a weight [40, 24] was used while its values were released");
    let results = run_once(device, &layers, |moment| {
        if moment > 0 {
            let full = allocated();
            bucket.release();
            released.push(full - allocated());
        }
        if moment < 2 {
            bucket.gather().unwrap();
        }
    });
    bucket.release();
    (results, released)
}

#[test]
fn gathered_weights_give_the_bits_of_whole_ones() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let (_parameters, layers) = weights(&device);
    let expected = run_once(&device, &layers, |_| {});
    for ranks in [1, 2, 3, 4] {
        let results = run(ranks, Options::default(), |communicator| {
            let device = Device::cpu(communicator.rank(), &DeviceOptions::default()).unwrap();
            Ok::<_, String>(gathered(&device, &communicator))
        });
        let elements =
            [24 * 40, 40, 40 * 8, 8].map(|size: usize| size.next_multiple_of(128)).iter().sum::<usize>();
        let whole = (4 * elements.next_multiple_of(128 * ranks)) as u64;
        for (results, released) in results.unwrap() {
            assert_eq!(results, expected, "{ranks} ranks");
            // The shard alone at first; then the flat buffer comes and goes.
            assert_eq!(released, [whole / ranks as u64, whole, whole], "{ranks} ranks");
        }
    }
}

/// Allocated bytes after the bucket is made, while the weights are gathered, and after their release.
fn bytes(device: &Device, communicator: &Communicator) -> Vec<u64> {
    let (parameters, _) = weights(device);
    let handles = parameters.list().iter().map(|parameter| parameter.weight.clone()).collect();
    let mut bucket = WeightBucket::new(&communicator.data, handles).unwrap();
    let shards = device.statistics().allocated();
    bucket.gather().unwrap();
    let gathered = device.statistics().allocated();
    bucket.release();
    vec![shards, gathered, device.statistics().allocated(), device.statistics().peak_allocated()]
}

#[test]
fn meta_ranks_gather_the_same_bytes() {
    let real = run(2, Options::default(), |communicator| {
        let device = Device::cpu(communicator.rank(), &DeviceOptions::default()).unwrap();
        Ok::<_, String>(bytes(&device, &communicator))
    });
    for (rank, real) in real.unwrap().into_iter().enumerate() {
        let meta = Device::meta(rank, Description::host(), &DeviceOptions::default()).unwrap();
        assert_eq!(bytes(&meta, &Communicator::counted(rank, 2)), real);
    }
}

#[test]
fn every_element_is_owned_once() {
    for ranks in [1, 2, 5] {
        let parts = run(ranks, Options::default(), |communicator| {
            let device = Device::cpu(communicator.rank(), &DeviceOptions::default()).unwrap();
            let (parameters, _) = weights(&device);
            let whole: Vec<Vec<f32>> = parameters
                .list()
                .iter()
                .map(|parameter| parameter.weight.tensor().unwrap().to_vec().unwrap())
                .collect();
            let handles = parameters.list().iter().map(|parameter| parameter.weight.clone()).collect();
            let bucket = WeightBucket::new(&communicator.data, handles).unwrap();
            let owned = bucket.owned().unwrap();
            for (number, first, part) in &owned {
                let values = part.to_vec::<f32>().unwrap();
                assert_eq!(values, whole[*number][*first..][..values.len()]);
            }
            Ok::<_, String>(
                owned
                    .iter()
                    .map(|(number, first, part)| (*number, *first, part.elements()))
                    .collect::<Vec<_>>(),
            )
        });
        let mut all: Vec<_> = parts.unwrap().concat();
        all.sort_unstable();
        let mut ends = [0; 4];
        for (number, first, elements) in all {
            assert_eq!(first, ends[number], "{ranks} ranks");
            ends[number] += elements;
        }
        assert_eq!(ends, [24 * 40, 40, 40 * 8, 8], "{ranks} ranks");
    }
}
