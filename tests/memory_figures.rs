//! Tests that small programs use the same bytes on every device as with PyTorch's allocator.

mod listings;

use crate::common;
use crate::common::devices::all;
use autograd::{Gradients, Mode, Tape};
use device::{Category, DType, Description, Device, DeviceOptions, Request};
use nn::models::{Mlp, MlpSizes};
use nn::{Input, Model, Parameters, Recompute, Stage};
use optim::{Optimizer, Slot, StepState, UpdateRule};
use tensor::Tensor;
use tensor::ops::Activation;

const MIB: usize = 1 << 20;

/// A device, with the bytes allocated and reserved at its creation: a GPU's workspaces.
struct Fresh {
    device: Device,
    start: (u64, u64),
}

fn devices() -> Vec<Fresh> {
    let fresh = |device: Device| {
        let start = (device.statistics().allocated(), device.statistics().reserved());
        Fresh { device, start }
    };
    all().into_iter().map(fresh).collect()
}

impl Fresh {
    /// Returns the bytes allocated and reserved since creation.
    fn usage(&self) -> (u64, u64) {
        let statistics = self.device.statistics();
        (statistics.allocated() - self.start.0, statistics.reserved() - self.start.1)
    }

    fn peak(&self) -> u64 {
        self.device.statistics().peak_allocated() - self.start.0
    }
}

#[test]
fn two_tensors_are_allocated_and_freed() {
    for fresh in devices() {
        let device = fresh.device.clone();
        let tensor = |mib: usize| {
            Tensor::empty(&device, [mib * MIB / 4], DType::F32, Request::new(Category::Other, "test"))
                .unwrap()
        };
        let first = tensor(4);
        let second = tensor(16);
        assert_eq!(fresh.usage(), (20_971_520, 20_971_520));
        drop(first);
        assert_eq!(fresh.usage(), (16_777_216, 20_971_520));
        drop(second);
        device.empty_cache().unwrap();
        assert_eq!(fresh.usage(), (0, 0));
        assert_eq!(fresh.peak(), 20_971_520);
    }
}

#[test]
fn a_view_keeps_its_storage_alive() {
    for fresh in devices() {
        let device = fresh.device.clone();
        let first = Tensor::zeros(&device, [MIB], DType::F32, Request::new(Category::Other, "test")).unwrap();
        let second = first.view(MIB / 2, [MIB / 4]).unwrap();
        drop(first);
        assert_eq!(fresh.usage().0, 4 * MIB as u64);
        assert_eq!(second.to_vec::<f32>().unwrap()[0], 0.0);
        drop(second);
        assert_eq!(fresh.usage().0, 0);
    }
}

fn five_layers(device: &Device) -> Mlp {
    let sizes = MlpSizes { sizes: vec![3, 300, 300, 400, 300, 100], activation: Activation::Relu };
    Mlp::new(Parameters::new(device, 1, DType::F32), &sizes, &Stage::whole(5)).unwrap()
}

fn batch(device: &Device) -> (Tensor, Tensor) {
    let x = Tensor::from_host(device, &[0.5_f32; 30], [10, 3], Category::Input).unwrap();
    let y = Tensor::from_host(device, &[0.25_f32; 1000], [10, 100], Category::Input).unwrap();
    (x, y)
}

#[test]
fn a_step_of_a_five_layer_mlp_frees_its_activations() {
    for fresh in devices() {
        let device = fresh.device.clone();
        let (x, y) = batch(&device);
        assert_eq!(fresh.usage().0, 4_608);
        let mlp = five_layers(&device);
        assert_eq!(fresh.usage().0, 1_457_152);
        assert_eq!(mlp.parameters().elements() * 4, 1_449_200);
        let tape = Tape::new(&device, Mode::Train);
        let prediction = mlp.forward(&tape, Input::Batch(x)).unwrap();
        assert_eq!(fresh.usage().0, 1_457_152 + 57_344);
        let loss = mlp.loss(&tape, prediction, &y, 1.0).unwrap();
        let mut gradients = Gradients::default();
        tape.backward(loss, &mut gradients).unwrap();
        // The input and all activations were freed with the tape.
        drop(gradients);
        drop(y);
        assert_eq!(fresh.usage().0, 1_457_152 - 4_608);
    }
}

#[test]
fn memory_is_constant_over_steps() {
    for fresh in devices() {
        let device = fresh.device.clone();
        let mlp = five_layers(&device);
        let slot = |p: &nn::Parameter| Slot {
            name: p.name.clone(),
            weight: p.weight.tensor().unwrap(),
            decay: !p.role.is_vector(),
        };
        let slots: Vec<_> = mlp.parameters().list().iter().map(slot).collect();
        let rule = UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.0 };
        let optimizer = Optimizer::new(&device, &slots, rule).unwrap();
        let state = StepState::new(&device).unwrap();
        state.set_learning_rate(0.01).unwrap();
        let mut after = Vec::new();
        for _ in 0..40 {
            let (x, y) = batch(&device);
            let tape = Tape::new(&device, Mode::Train);
            let prediction = mlp.forward(&tape, Input::Batch(x)).unwrap();
            let loss = mlp.loss(&tape, prediction, &y, 1.0).unwrap();
            let mut gradients = Gradients::default();
            tape.backward(loss, &mut gradients).unwrap();
            let list: Vec<_> = gradients.iter().map(|(_, tensor)| tensor.clone()).collect();
            optimizer.step(&list, &state).unwrap();
            drop((list, gradients, y));
            after.push((fresh.usage(), fresh.peak()));
        }
        assert!(after[1..].iter().all(|figures| *figures == after[1]), "{after:?}");
    }
}

/// An MLP of equally wide layers, in segments that may be recomputed.
struct Deep {
    layers: usize,
    width: usize,
    batch: usize,
    segments: usize,
}

/// Bytes above those before the step, measured as in PyTorch.
#[derive(Debug, PartialEq)]
struct Rise {
    /// After forward.
    forward: u64,
    /// At the peak of forward and backward.
    peak: u64,
    /// After backward: weight gradients, the input's gradient, and the output.
    left: u64,
}

impl Deep {
    /// Runs forward and backward on `device`. With one segment, all layers keep their activations.
    fn rise(&self, device: &Device) -> Rise {
        let Deep { layers, width, batch, segments } = *self;
        let sizes = MlpSizes { sizes: vec![width; layers + 1], activation: Activation::Relu };
        let recompute = match segments {
            1 => Recompute::NONE,
            segments => Recompute::first(layers, segments),
        };
        let mlp = Mlp::new(Parameters::new(device, 1, DType::F32), &sizes, &Stage::whole(layers)).unwrap();
        let mlp = mlp.recomputing(recompute);
        let request = Request::new(Category::Input, "test");
        let x = Tensor::zeros(device, [batch, width], DType::F32, request).unwrap();
        let base = device.statistics().allocated();
        let above = |bytes: u64| bytes - base;
        let tape = Tape::new(device, Mode::Train);
        let x = tape.leaf(x);
        let output = mlp.forward(&tape, Input::Hidden(x.clone())).unwrap();
        let forward = above(device.statistics().allocated());
        let seed = Tensor::zeros(device, [batch, width], DType::F32, Request::new(Category::Other, "test"));
        let mut gradients = Gradients::default();
        let mut leaves = tape.backward_from(vec![(output.source(), seed.unwrap())], &mut gradients).unwrap();
        let gradient = leaves.take(x.source()).unwrap();
        let statistics = device.statistics();
        let left = above(statistics.allocated());
        drop((output, gradient));
        Rise { forward, peak: above(statistics.peak_allocated()), left }
    }
}

/// Compares deep MLPs of width 1024 and 4096 rows with PyTorch's, whose `checkpoint_sequential` recomputes
/// all segments but the last.
#[test]
fn deep_mlps_need_at_most_pytorchs_bytes() {
    let recorded = std::fs::read_to_string(common::golden("pytorch_deep_mlp.json")).unwrap();
    let recorded: serde_json::Value = serde_json::from_str(&recorded).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    // Number of layers and of segments, and our bytes after forward and at the peak.
    let table: [(usize, usize, u64, u64); 6] = [
        (16, 1, 268_435_456, 306_188_288),
        (16, 4, 67_108_864, 155_242_496),
        (36, 1, 603_979_776, 641_732_608),
        (36, 6, 100_663_296, 264_368_128),
        (64, 1, 1_073_741_824, 1_111_494_656),
        (64, 8, 134_217_728, 407_080_960),
    ];
    let mut falls = Vec::new();
    for ((layers, segments, forward, peak), theirs) in
        table.into_iter().zip(recorded["deep"].as_array().unwrap())
    {
        assert_eq!(
            (number(&theirs["layers"]), number(&theirs["segments"])),
            (layers as u64, segments as u64)
        );
        let device = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap();
        let ours = Deep { layers, width: 1024, batch: 4096, segments }.rise(&device);
        assert_eq!((ours.forward, ours.peak), (forward, peak), "{layers} layers, {segments} segments");
        // The remaining bytes are equal: weight gradients, the input's gradient, and the output.
        let base = number(&theirs["base"]["allocated"]);
        assert_eq!(ours.left, number(&theirs["backward"]["allocated"]) - base);
        let above = |phase: &str, what: &str| number(&theirs[phase][what]) - base;
        assert!(ours.forward <= above("forward", "allocated") && ours.peak <= above("backward", "peak"));
        falls.push((ours.peak, above("backward", "peak")));
    }
    for pair in falls.chunks(2) {
        let [(ours, theirs), (ours_again, theirs_again)] = [pair[0], pair[1]];
        assert!(
            ours_again * theirs <= theirs_again * ours,
            "{ours_again} of {ours}, {theirs_again} of {theirs}"
        );
    }
}

#[test]
fn deep_mlps_use_equal_bytes_on_every_device() {
    for segments in [1, 3, 9] {
        let rises: Vec<_> = devices()
            .iter()
            .map(|fresh| Deep { layers: 9, width: 96, batch: 200, segments }.rise(&fresh.device))
            .collect();
        let host = &rises[0];
        assert!(host.forward > 0 && host.peak > host.forward);
        // GPUs also need workspaces.
        for rise in &rises[1..] {
            assert_eq!((rise.forward, rise.left), (host.forward, host.left));
        }
        assert_eq!(rises.len() % 2, 0);
        let (real, imitated) = rises.split_at(rises.len() / 2);
        assert_eq!(real, imitated);
    }
}
