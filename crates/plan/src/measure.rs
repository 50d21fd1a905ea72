//! FLOPs, bytes and memory of single layers, counted by running them on Meta.

use std::sync::Arc;

use autograd::{Mode, Source, Tape, Var};
use collective::DividedGroup;
use device::{CallLog, Category, Description, Device, Kind, Request};
use nn::{Input, Model, Stage};
use parallel::data::WorkKind;
use parallel::pipeline::{HeldBytes, StageBoundary, StagePart};
use tensor::Tensor;

use crate::error::Result;
use config::RunConfig;
use worker::build;
use worker::dataset::Dataset;
use worker::feed::first_batch;
use worker::setup::blueprint;
use worker::stages::{self, matrices, optimizer};

/// FLOPs of matmuls in the time in which a GPU moves a byte: approximately an H200 in bf16, at the rates
/// measured by `plimsoll bench step` (see `benches/notes/training_step.md`).
const GPU_BALANCE: u64 = 187;
/// FLOPs in the time in which one CPU core moves a byte.
const CPU_BALANCE: u64 = 10;

/// Work and memory of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerMeasure {
    /// Work per micro-batch of the forward pass, the input half of backward, and the weight half: matmul
    /// FLOPs plus the FLOPs possible in the time of moving the operators' bytes.
    pub passes: [u64; 3],
    /// Matmul FLOPs of the same three passes.
    pub flops: [u64; 3],
    /// Bytes that the layer keeps allocated.
    pub bytes: HeldBytes,
    /// Shape and dtype of the activation sent to the next layer.
    pub output: Option<StageBoundary>,
}

/// Measures every layer of the model as a separate stage. The first includes everything before the layers,
/// the last everything after them.
pub fn layers(config: &RunConfig, dataset: &Dataset, description: &Description) -> Result<Vec<LayerMeasure>> {
    let model_layers = config.layers();
    let mut measures = Vec::with_capacity(model_layers);
    let mut before = None;
    for layer in 0..model_layers {
        let (measure, _) = logged_layer(config, dataset, description, (layer, before))?;
        before = measure.output;
        measures.push(measure);
    }
    Ok(measures)
}

/// Measures one layer, whose input is the previous layer's output. Also returns the calls of its passes:
/// forward, the input half of backward, the weight half.
pub(crate) fn logged_layer(
    config: &RunConfig,
    dataset: &Dataset,
    description: &Description,
    (layer, before): (usize, Option<StageBoundary>),
) -> Result<(LayerMeasure, [CallLog; 3])> {
    let device = blueprint::meta(description)?;
    let stage = Stage { layers: layer..layer + 1, model_layers: config.layers() };
    layer_alone(config, dataset, &device, &stage, before)
}

fn layer_alone(
    config: &RunConfig,
    dataset: &Dataset,
    device: &Device,
    stage: &Stage,
    before: Option<StageBoundary>,
) -> Result<(LayerMeasure, [CallLog; 3])> {
    let start = held(device);
    let grid = config.parallel.grid().seen_from(0)?;
    let host = build::host_pool(device, config)?;
    let own = (std::slice::from_ref(stage), &Arc::default());
    let mut parts = stages::build((device, host.as_ref()), config, grid, own, None)?;
    // Buffers for offloaded state are shared by all layers, and so is the workspace of matrices.
    let before_matrices = held(device);
    let matrices = matrices::groups(device, config, &grid, &parts)?;
    let workspace = held(device) - before_matrices;
    let optimizer = match config.optim.offload {
        true => None,
        false => Some(optimizer::build((device, None), config, &parts, &matrices)?),
    };
    let parameters = held(device) - start - workspace;
    let group = DividedGroup::counted(config.parallel.replicas(), config.parallel.owners());
    let mut measure = LayerMeasure::default();
    let mut logs: [CallLog; 3] = Default::default();
    let next_log = |device: &Device| {
        let log = device.end_log();
        device.begin_log();
        log
    };
    for StagePart { model, reduction, weights } in &mut parts {
        if let Some(units) = weights {
            units.begin(WorkKind::Step, &group.within)?;
        }
        let start = held(device);
        let before_passes = work(device);
        let flops_before = device.flops();
        device.begin_log();
        let (tape, loss, output) = passed_forward(config, dataset, &**model, stage, before)?;
        logs[0] = next_log(device);
        let (activations, after_forward, flops_forward) =
            (held(device) - start, work(device), device.flops());
        let (leaves, pending) = match (loss, output) {
            (Some(loss), _) if loss.wants_gradient() => tape.backward_input(loss)?,
            (None, Some((source, cut))) => {
                measure.output = Some(cut);
                let seed = cut.gradient.then(|| Ok((source, tensor(device, cut)?)));
                tape.backward_input_from(seed.into_iter().collect::<Result<_>>()?)?
            }
            _ => continue,
        };
        drop(leaves);
        logs[1] = next_log(device);
        let weights = held(device) - start;
        let after_input = work(device);
        let flops_input = device.flops();
        pending.backward_weight(&mut reduction.sink(&group))?;
        logs[2] = device.end_log();
        measure.bytes = HeldBytes { parameters, activations, weights };
        let end = work(device);
        let flops_end = device.flops();
        measure.flops = [flops_forward - flops_before, flops_input - flops_forward, flops_end - flops_input];
        measure.passes = [after_forward - before_passes, after_input - after_forward, end - after_input];
    }
    device.end_log();
    drop(optimizer);
    Ok((measure, logs))
}

/// Tape, output, and the gradient's source for backward: the loss, or a stand-in for an output that has been
/// freed.
type Forward = (Tape, Option<Var>, Option<(Source, StageBoundary)>);

fn passed_forward(
    config: &RunConfig,
    dataset: &Dataset,
    model: &dyn Model,
    stage: &Stage,
    before: Option<StageBoundary>,
) -> Result<Forward> {
    let device = model.parameters().device();
    let first_batch::Uploaded { inputs, targets, pass } =
        first_batch::first(config, &dataset.longest_shapes(), device)?;
    let tape = Tape::new(device, Mode::Rehearse).with_pass(pass);
    let input = match before {
        Some(cut) if cut.gradient => Input::Hidden(tape.leaf(tensor(device, cut)?)),
        Some(cut) => Input::Hidden(tape.constant(tensor(device, cut)?)),
        None => Input::Batch(inputs),
    };
    let output = model.forward_stage(&tape, input)?;
    if stage.is_last() {
        let loss = model.loss_of_stage(&tape, output, &targets, 1.0)?;
        return Ok((tape, Some(loss), None));
    }
    let (shape, dtype, gradient) =
        (output.tensor().shape(), output.tensor().dtype(), output.wants_gradient());
    let cut = StageBoundary { shape, dtype, evaluated_dtype: dtype, gradient };
    Ok((tape, None, Some((output.source(), cut))))
}

/// Allocates an activation that is sent between stages, with uninitialized values.
pub fn tensor(device: &Device, cut: StageBoundary) -> Result<Tensor> {
    Ok(Tensor::empty(device, cut.shape, cut.dtype, Request::new(Category::Communication, "crossing"))?)
}

fn held(device: &Device) -> u64 {
    device.statistics().allocated()
}

/// Returns the matmul FLOPs so far, plus the FLOPs possible in the time of moving bytes. An operator is
/// assumed to write the bytes that it allocates and to read twice as many.
fn work(device: &Device) -> u64 {
    let written = device.statistics().get("requested_bytes.all.allocated").unwrap_or(0);
    let moved = u64::try_from(written).unwrap_or(0).saturating_mul(3);
    let balance = match device.description().kind {
        Kind::Cuda => GPU_BALANCE,
        Kind::Cpu => CPU_BALANCE,
    };
    device.flops().saturating_add(moved.saturating_mul(balance))
}
