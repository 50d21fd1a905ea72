//! Residual networks, compared with torchvision's in float64 (`tests/golden/resnet.py`).
#![allow(clippy::panic, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

use std::collections::BTreeMap;

use autograd::{Gradients, Mode, Tape};
use device::{Category, DType, Device, DeviceOptions, Float, dispatch};
use nn::{Input, Model, ModelSpec, Parameters, Stage};
use serde_json::Value;
use tensor::Tensor;
use vision::{ResNet, ResNetSizes, StemKind};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/resnet.json");
/// Largest relative difference in f32 and in half-precision types, of losses, and of statistics and gradients
/// relative to a tensor's norm, unless PyTorch's own difference is larger.
const TOLERANCES: [f64; 2] = [1e-5, 1e-2];
/// Maximum ratio of differences in sums of many roundings to a half-precision type.
const CHANCE: f64 = 1.25;

fn golden() -> Value {
    serde_json::from_str(&std::fs::read_to_string(GOLDEN).unwrap()).unwrap()
}

fn count(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn cpu() -> Device {
    Device::cpu(0, &DeviceOptions::default()).unwrap()
}

fn meta() -> Device {
    Device::meta(0, device::Description::host(), &DeviceOptions::default()).unwrap()
}

/// torchvision's ResNet-50 for images of 224 × 224.
const IMAGE_NET: ResNetSizes = ResNetSizes {
    depth: 50,
    width: 1.0,
    classes: 1000,
    image_size: 224,
    stem: StemKind::ImageNet,
    channels: 3,
};

fn build(device: &Device, sizes: ResNetSizes, dtype: DType) -> ResNet {
    let parameters = Parameters::new(device, 1, dtype);
    ResNet::new(parameters, &sizes, &Stage::whole(sizes.layers())).unwrap()
}

/// Returns the same values as the script's `uniform`.
fn uniform(name: &str, count: usize) -> Vec<f32> {
    let fnv = |seed: u32, byte: u8| (seed ^ u32::from(byte)).wrapping_mul(16_777_619);
    let seed = name.bytes().fold(2_166_136_261, fnv);
    let value = |index: u32| {
        let mut x = index.wrapping_mul(2_654_435_761).wrapping_add(seed);
        x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
        x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
        x ^= x >> 16;
        (x >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..count as u32).map(value).collect()
}

/// Returns the same values as the script's `initial`, for a tensor of our shape.
fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut values = uniform(name, shape.iter().product());
    match *shape {
        [out, height, width, _] => {
            let scale = (24.0 / (out * height * width) as f64).sqrt() as f32;
            values.iter_mut().for_each(|value| *value *= scale);
        }
        _ if name.starts_with("fc.") => values.iter_mut().for_each(|value| *value *= 0.2),
        _ if name.ends_with("bn3.weight") => {
            values.iter_mut().for_each(|value| *value = *value * 0.125 + 0.25);
        }
        _ => {
            let around = if name.ends_with("weight") { 1.0 } else { 0.0 };
            values.iter_mut().for_each(|value| *value = *value * 0.5 + around);
        }
    }
    channels_last(&values, shape)
}

/// Reorders `[a, channels, height, width]` to `shape`, `[a, height, width, channels]`; other arrays are
/// unchanged.
fn channels_last(values: &[f32], shape: &[usize]) -> Vec<f32> {
    let [outer, height, width, channels] = *shape else { return values.to_vec() };
    let at = |index: usize| {
        let channel = index % channels;
        let pixel = index / channels % (height * width);
        let outer = index / (channels * height * width);
        (outer * channels + channel) * height * width + pixel
    };
    (0..outer * height * width * channels).map(|index| values[at(index)]).collect()
}

/// The script's `sampled` of a tensor of our shape.
fn sampled(values: &[f32], shape: &[usize]) -> [f64; 5] {
    let mut theirs = values.to_vec();
    if let [outer, height, width, channels] = *shape {
        for (index, value) in theirs.iter_mut().enumerate() {
            let pixel = index % (height * width);
            let channel = index / (height * width) % channels;
            let outer_index = index / (channels * height * width);
            *value = values[(outer_index * height * width + pixel) * channels + channel];
        }
        assert_eq!(theirs.len(), outer * height * width * channels);
    }
    let wide: Vec<f64> = theirs.iter().map(|value| f64::from(*value)).collect();
    let norm = wide.iter().map(|value| value * value).sum::<f64>().sqrt();
    [norm, wide[0], wide[wide.len() / 4], wide[wide.len() * 2 / 4], wide[wide.len() * 3 / 4]]
}

/// Differences from expected values, relative to the norm of each tensor.
#[derive(Default)]
struct Differences {
    off: Vec<f64>,
    /// The largest, with its name.
    worst: (f64, String),
}

impl Differences {
    fn add(&mut self, name: &str, actual: [f64; 5], expected: &Value) {
        let norm = expected[0].as_f64().unwrap().abs();
        for (actual, expected) in actual.iter().zip(expected.as_array().unwrap()) {
            let off = (actual - expected.as_f64().unwrap()).abs() / norm.max(1e-3);
            if off >= self.worst.0 {
                self.worst = (off, name.to_owned());
            }
            self.off.push(off);
        }
    }

    /// Asserts that the differences are at most `tolerance` or PyTorch's: in f32 the largest; in half types,
    /// where rounding decides single values, the root of their mean square up to [`CHANCE`].
    fn assert(&self, what: &str, dtype: DType, tolerance: f64, theirs: &Value) {
        let mean = (self.off.iter().map(|off| off * off).sum::<f64>() / self.off.len() as f64).sqrt();
        let (own, measure) = if dtype == DType::F32 { (self.worst.0, "largest") } else { (mean, "mean") };
        let theirs = theirs[measure].as_f64().unwrap() * if dtype == DType::F32 { 1.0 } else { CHANCE };
        let worst = &self.worst;
        assert!(
            own < tolerance.max(theirs),
            "{what}: off by {own:e}, PyTorch by {theirs:e}; worst {worst:?}"
        );
    }
}

/// Overwrites a tensor of any floating-point type.
fn set(tensor: &Tensor, values: &[f32]) {
    dispatch!(
        tensor.dtype(),
        T => tensor.set(&values.iter().map(|value| T::from_f32(*value)).collect::<Vec<T>>()).unwrap(),
        _ => panic!("{} is not floating-point", tensor.dtype()),
    );
}

/// The only element of a tensor.
fn scalar(tensor: &Tensor) -> f64 {
    f64::from(tensor.to_vec::<f32>().unwrap()[0])
}

#[test]
fn losses_gradients_and_statistics_are_torchvisions() {
    let golden = golden();
    let [batch, classes] = ["batch", "classes"].map(|key| count(&golden[key]));
    for case in golden["cases"].as_array().unwrap() {
        let device = cpu();
        let [depth, size] = ["depth", "size"].map(|key| count(&case[key]));
        let stem = StemKind::ALL.into_iter().find(|stem| case["stem"] == stem.name()).unwrap();
        let (dtype, least) = match case["dtype"].as_str().unwrap() {
            "f32" => (DType::F32, TOLERANCES[0]),
            _ => (DType::Bf16, TOLERANCES[1]),
        };
        let theirs = |key: &str| &case["pytorch_errors"][key];
        let name = format!("ResNet-{depth} {} {dtype}", stem.name());
        let model =
            build(&device, ResNetSizes { depth, classes, image_size: size, stem, ..IMAGE_NET }, dtype);
        let parameters = model.parameters();
        for parameter in parameters.list() {
            set(
                &parameter.weight.tensor().unwrap(),
                &initial(&parameter.name, parameter.weight.shape().dims()),
            );
        }
        parameters.statistics().keep(1).unwrap();
        let shape = [batch, size, size, 3];
        let mut values = uniform(golden["images"].as_str().unwrap(), shape.iter().product());
        values.iter_mut().for_each(|value| *value *= 4.0);
        let images = Tensor::for_host(&device, shape, dtype, Category::Input).unwrap();
        set(&images, &channels_last(&values, &shape));
        let targets: Vec<u32> = (0..batch).map(|image| ((3 * image + 1) % classes) as u32).collect();
        let targets = Tensor::from_host(&device, &targets, [batch], Category::Input).unwrap();
        let run = |tape: &Tape| {
            let output = model.forward(tape, Input::Batch(images.clone())).unwrap();
            model.loss(tape, output, &targets, 1.0).unwrap()
        };
        let close = |what: &str, value: f64| {
            let expected = case[what].as_f64().unwrap();
            let off = (value / expected - 1.0).abs();
            assert!(off < least, "{name}: {what} {value}, not {expected}: off by {off:e}");
        };
        let tape = Tape::new(&device, Mode::Train);
        let loss = run(&tape);
        close("loss", scalar(loss.tensor()));
        let mut gradients = Gradients::default();
        tape.backward(loss, &mut gradients).unwrap();
        let gradients: BTreeMap<_, _> = gradients.iter().collect();
        assert_eq!(gradients.len(), case["gradients"].as_object().unwrap().len());
        let mut differences = Differences::default();
        for used in parameters.uses() {
            let parameter = &parameters.list()[used.parameter.0].name;
            let gradient = gradients[&used.id];
            let actual = sampled(&gradient.to_vec::<f32>().unwrap(), gradient.shape().dims());
            differences.add(parameter, actual, &case["gradients"][parameter]);
        }
        differences.assert(&format!("{name}, gradients"), dtype, least, theirs("gradients"));
        parameters.statistics().fold().unwrap();
        let mut elements = 0;
        let mut differences = Differences::default();
        for buffer in model.buffers() {
            if buffer.name().ends_with("num_batches_tracked") {
                assert_eq!(buffer.tensor().to_vec::<u32>().unwrap(), [1]);
                continue;
            }
            elements += buffer.tensor().elements();
            let actual = sampled(&buffer.tensor().to_vec::<f32>().unwrap(), &[]);
            differences.add(buffer.name(), actual, &case["buffers"][buffer.name()]);
        }
        differences.assert(&format!("{name}, statistics"), dtype, least, theirs("buffers"));
        assert_eq!(elements, count(&case["buffers_elements"]));
        close("evaluated", scalar(run(&Tape::new(&device, Mode::Evaluate)).tensor()));
    }
}

#[test]
fn sizes_are_torchvisions() {
    let table = [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)];
    for (depth, expected) in table {
        let sizes = ResNetSizes { depth, ..IMAGE_NET };
        assert_eq!(build(&meta(), sizes, DType::F32).parameters().elements(), expected, "ResNet-{depth}");
    }
    let half = build(&meta(), ResNetSizes { width: 0.5, ..IMAGE_NET }, DType::F32);
    assert_eq!(half.parameters().elements(), 6_917_640);
    // 3 × 3 instead of 7 × 7 weights for each input and output of the first convolution.
    let small = build(&meta(), ResNetSizes { stem: StemKind::Small, ..IMAGE_NET }, DType::F32);
    assert_eq!(small.parameters().elements(), 25_557_032 - 64 * 3 * (49 - 9));
    let whole = build(&meta(), IMAGE_NET, DType::F32);
    let elements: usize = whole.buffers().iter().map(|buffer| buffer.tensor().elements()).sum();
    assert_eq!(elements, 53_120 + 53);
}

#[test]
fn initial_values_are_torchvisions() {
    let sizes = ResNetSizes { depth: 18, width: 0.5, classes: 10, image_size: 32, ..IMAGE_NET };
    let device = cpu();
    let model = build(&device, sizes, DType::F32);
    for parameter in model.parameters().list() {
        let values = parameter.weight.tensor().unwrap().to_vec::<f32>().unwrap();
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        let variance =
            values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        let expected = match (parameter.weight.shape().dims(), parameter.name.as_str()) {
            ([out, height, width, _], _) => Some(2.0 / (out * height * width) as f64),
            (_, "fc.weight") => Some(1.0 / (3.0 * 256.0)),
            _ => None,
        };
        if let Some(expected) = expected {
            assert!((variance / expected - 1.0).abs() < 0.1, "{}: {variance} not {expected}", parameter.name);
        } else if parameter.name != "fc.bias" {
            let value = if parameter.name.ends_with("weight") { 1.0 } else { 0.0 };
            assert!(values.iter().all(|v| *v == value), "{}", parameter.name);
        }
    }
}
