//! Compares a network that Muon and AdamW train with recordings of PyTorch.

use autograd::{Gradients, Mode, Tape};
use collective::{Axis, Communicator, RankGrid};
use device::{Category, DType, Device};
use nn::models::{Mlp, MlpSizes};
use nn::{Input, Model, Parameter, Parameters, Stage};
use optim::{GroupOptions, MatrixGroupOptions, Optimizer, Slot, StateOptions, StepState, UpdateRule};
use parallel::data::{MatrixOwners, MatrixParameter, MatrixPart, MatrixScale, StageRanks};
use tensor::Tensor;
use tensor::ops::Activation;
use tensor::ops::orthogonalise::NewtonSchulz;

use crate::common::devices::computing;
use crate::common::{Recording, relative};

const RATE: f32 = 0.01;
const STEPS: usize = 20;

/// A perceptron with its optimizer on one rank.
struct Trained {
    mlp: Mlp,
    optimizer: Optimizer,
    owners: MatrixOwners,
    state: StepState,
}

impl Trained {
    fn new(device: &Device, recording: &Recording, scale: MatrixScale) -> Self {
        let sizes = MlpSizes { sizes: vec![12, 64, 48, 80, 56, 10], activation: Activation::Gelu };
        let mlp = Mlp::new(Parameters::new(device, 1, DType::F32), &sizes, &Stage::whole(5)).unwrap();
        recording.load(mlp.parameters(), "init.");
        let list = mlp.parameters().list();
        let slot = |parameter: &Parameter| Slot {
            name: parameter.name.clone(),
            weight: parameter.weight.tensor().unwrap(),
            decay: true,
        };
        let slots: Vec<_> = list.iter().map(slot).collect();
        let (hidden, rest): (Vec<_>, Vec<_>) =
            (0..list.len()).partition(|index| !list[*index].matrices.is_empty());
        assert_eq!(hidden.len(), 4, "all matrices but the head's are hidden ones");
        let matrix = |index: &usize| MatrixParameter {
            matrices: list[*index].matrices.clone(),
            sharding: list[*index].sharding.clone(),
            parts: vec![MatrixPart {
                ranges: std::iter::once(0..slots[*index].weight.elements()).collect(),
                slot: Some(*index),
            }],
        };
        let matrices: Vec<_> = hidden.iter().map(matrix).collect();
        let grid = RankGrid::new(&[], 0).unwrap();
        let ranks = StageRanks::new(&grid, &[Axis::Data], 1);
        let rules = (NewtonSchulz::default(), scale);
        let owners = MatrixOwners::new(device, &ranks, &matrices, rules).unwrap();
        // The head and the biases have a tenth of the matrices' rate.
        let rule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
        let states = StateOptions::default();
        let adamw = GroupOptions { rule, rate_factor: 0.1, states: states.clone(), slots: rest };
        let waves = owners.waves().map(<[usize]>::to_vec).collect();
        let muon = MatrixGroupOptions { momentum: 0.95, weight_decay: 0.1, rate_factor: 1.0, states, waves };
        let optimizer = Optimizer::with_matrices((device, None), &slots, (&[adamw], &[muon]), slots.len());
        let state = StepState::new(device).unwrap();
        state.set_learning_rate(RATE).unwrap();
        Trained { mlp, optimizer: optimizer.unwrap(), owners, state }
    }

    /// Makes one step, and returns its loss.
    fn step(&self, x: &Tensor, y: &Tensor) -> f32 {
        let tape = Tape::new(x.device(), Mode::Train);
        let prediction = self.mlp.forward(&tape, Input::Batch(x.clone())).unwrap();
        let loss = self.mlp.loss(&tape, prediction, y, 1.0).unwrap();
        let value = loss.tensor().to_vec::<f32>().unwrap()[0];
        let mut all = Gradients::default();
        tape.backward(loss, &mut all).unwrap();
        let uses = self.mlp.parameters().uses();
        let gradients: Vec<_> = uses.iter().map(|used| all.get(used.id).unwrap().clone()).collect();
        self.optimizer.update_first_slots(&gradients, &self.state).unwrap();
        let world = Communicator::solo().group;
        let update = self.optimizer.update_matrices(&gradients, &self.state, |_, wave, directions| {
            self.owners.orthogonalise(&world, wave, directions)
        });
        update.unwrap();
        self.optimizer.update_other_slots(&gradients, &self.state).unwrap();
        value
    }

    /// Asserts that each parameter has changed since the start as in the float64 recording after `step`
    /// steps. PyTorch's own distance from it, which comes from the rounding of the iterations to bf16, may be
    /// exceeded threefold, because other sums round otherwise.
    fn check(&self, recording: &Recording, (name, step): (&str, usize)) {
        for parameter in self.mlp.parameters().list() {
            let start = recording.values(&format!("init.{}", parameter.name));
            let change = |values: &[f64]| -> Vec<f64> {
                values.iter().zip(&start).map(|(now, start)| now - start).collect()
            };
            let recorded =
                |name: &str| change(&recording.values(&format!("{name}.{step}.{}", parameter.name)));
            let narrow = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect::<Vec<_>>();
            let exact = recorded(&format!("exact.{name}"));
            let expected = relative(&narrow(recorded(name)), &exact);
            let actual = parameter.weight.tensor().unwrap().to_vec::<f32>().unwrap();
            let actual: Vec<_> = actual.into_iter().map(f64::from).collect();
            let off = relative(&narrow(change(&actual)), &exact);
            let most = 3.0 * expected + 1e-3;
            assert!(off < most, "{name}, {} after {step} steps: {off}, recorded {expected}", parameter.name);
        }
    }
}

#[test]
fn twenty_steps_of_muon_match_the_recording() {
    let recording = Recording::read("muon.safetensors");
    for device in computing() {
        for (name, scale) in [("spectral", MatrixScale::Spectral), ("rms", MatrixScale::Rms)] {
            let trained = Trained::new(&device, &recording, scale);
            let tensor = |name: &str, columns: usize| {
                let values = recording.floats(name);
                Tensor::from_host(&device, &values, [256, columns], Category::Input).unwrap()
            };
            let x = tensor("x", 12);
            let y = tensor("y", 10);
            let mut losses = vec![trained.step(&x, &y)];
            trained.check(&recording, (name, 1));
            losses.extend((1..STEPS).map(|_| trained.step(&x, &y)));
            trained.check(&recording, (name, STEPS));
            let off = relative(&losses, &recording.values(&format!("{name}.losses")));
            assert!(off < 2e-3, "{name}: losses are off by {off}");
        }
    }
}
