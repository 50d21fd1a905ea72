//! The bytes of small programs, to the byte, on every device: the figures that PyTorch's allocator gives for them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use autograd::{Gradients, Tape};
use common::devices::all;
use device::{Category, DType, Device, Request};
use nn::models::{Mlp, MlpSizes};
use nn::{Input, Model, Stage};
use optim::{Kind, Optimizer, Slot};
use tensor::Tensor;
use tensor::ops::Activation;

const MIB: usize = 1 << 20;

/// A device, and what it held when it was new: the workspaces of a GPU.
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
    /// Bytes allocated and reserved since the start.
    fn usage(&self) -> (u64, u64) {
        let statistics = self.device.statistics();
        (statistics.allocated() - self.start.0, statistics.reserved() - self.start.1)
    }

    fn peak(&self) -> u64 {
        self.device.statistics().peak_allocated() - self.start.0
    }
}

#[test]
fn two_tensors() {
    for fresh in devices() {
        let device = fresh.device.clone();
        let tensor = |mib: usize| {
            Tensor::empty(&device, [mib * MIB / 4], DType::F32, Request::new(Category::Other, "test"))
                .unwrap()
        };
        let (first, second) = (tensor(4), tensor(16));
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
fn a_second_owner_keeps_memory_alive() {
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
    Mlp::new(device, &sizes, &Stage::whole(5), 1, DType::F32).unwrap()
}

fn batch(device: &Device) -> (Tensor, Tensor) {
    let x = Tensor::from_host(device, &[0.5_f32; 30], [10, 3], Category::Input).unwrap();
    let y = Tensor::from_host(device, &[0.25_f32; 1000], [10, 100], Category::Input).unwrap();
    (x, y)
}

#[test]
fn the_five_layer_mlp() {
    for fresh in devices() {
        let device = fresh.device.clone();
        let (x, y) = batch(&device);
        assert_eq!(fresh.usage().0, 4_608);
        let mlp = five_layers(&device);
        assert_eq!(fresh.usage().0, 1_457_152);
        assert_eq!(mlp.parameters().elements() * 4, 1_449_200);
        let tape = Tape::recording(&device);
        let prediction = mlp.forward(&tape, Input::Batch(x)).unwrap();
        assert_eq!(fresh.usage().0, 1_457_152 + 57_344);
        let loss = mlp.loss(&tape, prediction, &y, 1.0).unwrap();
        let mut gradients = Gradients::default();
        tape.backward(loss, &mut gradients).unwrap();
        // Nothing but the parameters, as many bytes of gradients, the target and the loss is left: x and all
        // activations went with the tape.
        drop(gradients);
        drop(y);
        assert_eq!(fresh.usage().0, 1_457_152 - 4_608);
    }
}

#[test]
fn a_long_loop_is_constant() {
    for fresh in devices() {
        let device = fresh.device.clone();
        let mlp = five_layers(&device);
        let slot =
            |p: &nn::Parameter| Slot { name: p.name.clone(), weight: p.tensor.clone(), decay: p.decay };
        let slots: Vec<_> = mlp.parameters().list().iter().map(slot).collect();
        let mut optimizer = Optimizer::new(&device, &slots, Kind::Sgd { momentum: 0.9 }, 0.0).unwrap();
        let mut after = Vec::new();
        for _ in 0..40 {
            let (x, y) = batch(&device);
            let tape = Tape::recording(&device);
            let prediction = mlp.forward(&tape, Input::Batch(x)).unwrap();
            let loss = mlp.loss(&tape, prediction, &y, 1.0).unwrap();
            let mut gradients = Gradients::default();
            tape.backward(loss, &mut gradients).unwrap();
            let list: Vec<_> = gradients.iter().map(|(_, tensor)| tensor.clone()).collect();
            optimizer.step(&list, 0.01, None).unwrap();
            drop((list, gradients, y));
            after.push((fresh.usage(), fresh.peak()));
        }
        assert!(after[1..].iter().all(|figures| *figures == after[1]), "{after:?}");
    }
}
