//! Tests of model buffers through a run: they are saved by name, restored on other grids, planned, and
//! changed only by training.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::runs::{GPT, config, on_cpu};
use autograd::{Mode, Tape, Var};
use device::{DType, bf16};
use memory::Category;
use nn::{Input, Model, ModelBuffer, NnError, Parameters};
use plan::{DeviceRanks, PlanDevice, plan, prepare};
use run::{Interrupt, RunOptions, TrainReport};
use telemetry::Statistic;
use tensor::Tensor;
use worker::{ModelHook, Placement};

type Modes = Arc<Mutex<Vec<Mode>>>;

/// A model with a running mean of the tokens in its first stage, a count of passes in its last stage, and a
/// table in every stage.
struct Buffered {
    inner: Box<dyn Model>,
    buffers: Vec<ModelBuffer>,
    modes: Modes,
}

const TABLE: [bf16; 3] = [bf16::ONE, bf16::EPSILON, bf16::NEG_INFINITY];

impl Buffered {
    fn hook(modes: &Modes) -> ModelHook {
        let modes = Arc::clone(modes);
        ModelHook::new(move |inner| {
            let device = inner.parameters().device();
            let mut buffers = vec![ModelBuffer::new(device, "table", [3], &TABLE).unwrap()];
            if inner.parameters().find("wpe.weight").is_some() {
                buffers.push(ModelBuffer::new(device, "tokens.mean", [1], &[0.0f32]).unwrap());
            }
            if inner.parameters().find("ln_f.weight").is_some() {
                buffers.push(ModelBuffer::new(device, "passes", [1, 1], &[0u32]).unwrap());
            }
            Box::new(Buffered { inner, buffers, modes: Arc::clone(&modes) })
        })
    }

    fn to_update(&self, name: &str, tape: &Tape) -> Option<&Tensor> {
        self.buffers.iter().find(|buffer| buffer.name() == name)?.to_update(tape)
    }
}

impl Model for Buffered {
    fn parameters(&self) -> &Parameters {
        self.inner.parameters()
    }

    fn buffers(&self) -> &[ModelBuffer] {
        &self.buffers
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var, NnError> {
        self.modes.lock().unwrap().push(tape.mode());
        if let (Some(mean), Input::Batch(tokens)) = (self.to_update("tokens.mean", tape), &input) {
            let tokens = tokens.to_vec::<u32>()?;
            let batch = tokens.iter().map(|token| *token as f32).sum::<f32>() / tokens.len() as f32;
            mean.set(&[0.9 * mean.to_vec::<f32>()?[0] + 0.1 * batch])?;
        }
        if let Some(passes) = self.to_update("passes", tape) {
            passes.set(&[passes.to_vec::<u32>()?[0] + 1])?;
        }
        self.inner.forward(tape, input)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var, NnError> {
        self.inner.loss(tape, prediction, targets, scale)
    }
}

/// Trains to the end or, if `one_step`, for one step.
fn train(directory: &Path, overrides: &[&str], hook: bool, one_step: bool) -> TrainReport {
    let interrupt = if one_step { Interrupt::after(1) } else { Interrupt::default() };
    let options = RunOptions {
        resume: true,
        interrupt,
        model_hook: hook.then(|| Buffered::hook(&Modes::default())),
        ..on_cpu(directory)
    };
    let report = run::train(config(GPT, &[&["checkpoint.every=1000"], overrides].concat()), options).unwrap();
    // The memory of buffers is planned.
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{report}");
    // A run that stops early is not compared as a whole.
    assert_eq!(report.interrupted, one_step);
    assert!(one_step || report.unplanned.as_ref().is_some_and(Vec::is_empty), "{report}");
    report
}

/// Returns the mean (as bits) and the count in the newest checkpoint.
fn saved(directory: &Path) -> (u32, u32) {
    let checkpoint = checkpoint::newest(directory).unwrap().unwrap();
    let array = |name: &str, dtype, shape: &[usize]| {
        assert_eq!(checkpoint.layout(name).unwrap(), (dtype, shape), "{name}");
        checkpoint.bytes(name).unwrap()
    };
    assert_eq!(array("table", DType::Bf16, &[3]), TABLE.map(bf16::to_le_bytes).concat());
    let word = |bytes: Vec<u8>| u32::from_le_bytes(bytes.try_into().unwrap());
    (word(array("tokens.mean", DType::F32, &[1])), word(array("passes", DType::U32, &[1, 1])))
}

/// Number of micro-batches in a run: six steps of four.
const PASSES: u32 = 6 * 4;

#[test]
fn buffers_are_saved_and_restored_on_other_grids() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let bare = train(&path("bare"), &[], false, false);
    let whole = train(&path("whole"), &[], true, false);
    let expected = saved(&path("whole"));
    assert_eq!(expected.1, PASSES, "validations do not count");
    assert_eq!(whole.summary.weights_sha256, bare.summary.weights_sha256, "buffers are not hashed");
    assert_eq!(whole.summary.losses, bare.summary.losses);
    let live = |report: &TrainReport| report.ranks[0].get(Statistic::LiveBytes(Category::Buffer));
    assert_eq!((live(&bare), live(&whole)), (0, 3 * 512));
    let table: &[(&str, &[&[&str]])] = &[
        ("stages", &[&["parallel.pipeline=2"]]),
        ("recomputed", &[&["memory.recompute=block"]]),
        (
            "resumed",
            &[&[], &["parallel.pipeline=2"], &["parallel.pipeline=2", "parallel.schedule=gpipe"], &[]],
        ),
    ];
    for (name, grids) in table {
        for (index, grid) in grids.iter().enumerate() {
            let report = train(&path(name), grid, true, index + 1 < grids.len());
            if index + 1 == grids.len() {
                assert_eq!(report.summary.weights_sha256, bare.summary.weights_sha256, "{name}");
            }
        }
        assert_eq!(saved(&path(name)), expected, "{name}");
    }
}

/// Checks that the first data-parallel rank saves its buffer and all of them restore it.
#[test]
fn the_first_replica_is_saved() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    train(&run_dir, &["parallel.data=2"], true, true);
    assert_eq!(saved(&run_dir).1, 2);
    train(&run_dir, &["parallel.data=2", "parallel.pipeline=2"], true, true);
    assert_eq!(saved(&run_dir).1, 4);
    train(&run_dir, &[], true, false);
    assert_eq!(saved(&run_dir).1, 4 + 4 * 4);
}

/// Checks that the rehearsal before the first step, which GPU ranks and their plan run, is not in training
/// mode.
#[test]
fn a_rehearsal_has_its_own_mode() {
    let description = PlanDevice::shipped().unwrap().description(DeviceRanks::CONNECTED);
    let setup =
        prepare(config(GPT, &["parallel.data=2", "memory.recompute=block"]), Placement::Meta(description));
    let modes = Modes::default();
    let setup = setup.unwrap().with_hook(Some(Buffered::hook(&modes))).unwrap();
    modes.lock().unwrap().clear();
    plan(&setup, 0).unwrap();
    let modes = modes.lock().unwrap();
    let trained = modes.iter().position(|mode| *mode == Mode::Train).unwrap();
    let (before, after) = modes.split_at(trained);
    // Two of four micro-batches, then two of three of a validation.
    assert_eq!(before, [Mode::Rehearse, Mode::Rehearse, Mode::Evaluate, Mode::Evaluate]);
    assert!(!after.contains(&Mode::Rehearse) && after.contains(&Mode::Evaluate));
}

#[test]
fn a_buffer_that_contradicts_another_is_refused() {
    let setup = || prepare(config(GPT, &["parallel.pipeline=2"]), Placement::Cpu).unwrap();
    // As long as the stage's number of parameters, or one element.
    let hook = |name: &'static str, differs: bool| {
        ModelHook::new(move |inner| {
            let elements = if differs { inner.parameters().list().len() } else { 1 };
            let buffer =
                ModelBuffer::new(inner.parameters().device(), name, [elements], &vec![0u32; elements]);
            Box::new(Buffered { inner, buffers: vec![buffer.unwrap()], modes: Modes::default() })
        })
    };
    let message = |name, differs| setup().with_hook(Some(hook(name, differs))).unwrap_err().to_string();
    let contradiction = message("counts", true);
    let expected = "buffer counts is u32 [14] in stage 0 and u32 [15] in stage 1";
    assert!(contradiction.ends_with(expected), "{contradiction}");
    let taken = message("ln_f.weight", false);
    assert!(taken.ends_with("ln_f.weight names a parameter and a buffer"), "{taken}");
}
