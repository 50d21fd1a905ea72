//! Loads the recorded folders as models on a device.

use std::path::{Path, PathBuf};

use autograd::{Gradients, Mode, Tape};
use checkpoint::Target;
use config::RunConfig;
use device::{Category, DType, Device, DeviceOptions};
use nn::{HuggingFaceModel, Input, Model, Parameters, Recompute, Stage};
use pretrained::PretrainedModel;
use serde_json::Value;
use tensor::{Tensor, ops};

/// Names of the recorded models, one or more of each supported family.
pub(crate) const MODELS: &[&str] = &[
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "families/cohere2",
    "families/deepseek",
    "families/gemma2",
    "families/gemma3",
    "families/gemma4",
    "families/granite",
    "families/falcon-h1",
    "families/lfm2",
    "families/ministral",
    "families/ministral3",
    "families/mistral",
    "families/nanochat",
    "families/olmo2",
    "families/qwen3.5",
    "families/olmo3",
    "families/phi3",
    "families/phi4",
    "families/smollm3",
];

/// Further recorded models, with mixtures, and with heads whose width half precision does not support.
pub(crate) const IN_F32: &[&str] = &[
    "families/deepseek-v3",
    "families/ernie4.5-moe",
    "families/exaone4",
    "families/glm4-moe",
    "families/glm4-moe-lite",
    "families/gpt-oss",
    "families/hunyuan",
    "families/kimi-linear",
    "families/minimax-m2",
    "families/mixtral",
    "families/nemotron-h",
    "families/olmo-hybrid",
    "families/olmoe",
    "families/qwen3-moe",
    "families/seed-oss",
];

/// Returns the folder of a recorded model.
pub(crate) fn folder(name: &str) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    if name.contains('/') { golden.join(name) } else { golden.join("models").join(name) }
}

/// Reads the results that transformers computed in float64.
pub(crate) fn expected(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder(name).join("expected.json")).unwrap()).unwrap()
}

/// Builds the configuration that a folder implies.
pub(crate) fn config(folder: &Path) -> Result<RunConfig, String> {
    let text = format!("[model]\nfrom = {:?}\n[data]\nkind = \"synthetic\"\n", folder.display().to_string());
    RunConfig::parse(&text, "test.toml", Path::new("/"), &[]).map_err(|error| error.to_string())
}

pub(crate) fn layout(config: &RunConfig) -> HuggingFaceModel {
    config.model.hugging_face().unwrap()
}

/// Opens a folder as the model of its own configuration.
pub(crate) fn open(folder: &Path) -> Result<PretrainedModel, String> {
    PretrainedModel::open(folder, layout(&config(folder)?)).map_err(|error| error.to_string())
}

/// Builds a model on `device` with a folder's weights.
pub(crate) fn load(folder: &Path, device: &Device, dtype: DType) -> Box<dyn Model> {
    let config = config(folder).unwrap();
    let stage = Stage::whole(config.layers());
    let model = config.model.build(Parameters::new(device, 1, dtype), &stage, Recompute::NONE).unwrap();
    fill(&*model, &open(folder).unwrap());
    model
}

/// Fills the parameters and buffers of a model or of one of its stages.
pub(crate) fn fill(model: &dyn Model, weights: &PretrainedModel) {
    let whole = |p: &nn::Parameter| Target::whole(p.name.clone(), DType::F32, p.weight.tensor().unwrap());
    let buffer = |buffer: &nn::ModelBuffer| {
        Target::whole(buffer.name().to_owned(), DType::F32, buffer.tensor().clone())
    };
    let parameters = model.parameters().list().iter().map(whole);
    weights.load(&mut parameters.chain(model.buffers().iter().map(buffer))).unwrap();
}

/// Reads the tokens used with transformers: a header of 1024 bytes, then 16-bit words.
pub(crate) fn tokens(name: &str) -> Vec<u32> {
    let bytes = std::fs::read(folder(name).join("tokens.bin")).unwrap();
    bytes[1024..].as_chunks().0.iter().map(|word| u32::from(u16::from_le_bytes(*word))).collect()
}

/// Returns all sequences as one batch: inputs and targets.
pub(crate) fn batch(name: &str, device: &Device) -> [Tensor; 2] {
    let tokens = tokens(name);
    let expected = expected(name);
    let size = |key: &str| expected[key].as_u64().unwrap() as usize;
    let shape = [size("sequences"), size("context")];
    let count = shape[0] * shape[1];
    [&tokens[..count], &tokens[1..=count]]
        .map(|part| Tensor::from_host(device, part, shape, Category::Input).unwrap())
}

/// Computes loss and gradients of one batch.
pub(crate) fn pass(model: &dyn Model, [inputs, targets]: &[Tensor; 2]) -> (f32, Gradients) {
    let tape = Tape::new(inputs.device(), Mode::Train);
    let prediction = model.forward(&tape, Input::Batch(inputs.clone())).unwrap();
    let loss = model.loss(&tape, prediction, targets, 1.0).unwrap();
    let value = loss.tensor().to_vec::<f32>().unwrap()[0];
    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients).unwrap();
    (value, gradients)
}

/// Returns each parameter's gradient, summed over its uses in order.
pub(crate) fn by_parameter(model: &dyn Model, gradients: &Gradients) -> Vec<Tensor> {
    let mut sums: Vec<Option<Tensor>> = vec![None; model.parameters().list().len()];
    for used in model.parameters().uses() {
        let gradient = gradients.get(used.id).unwrap();
        match &sums[used.parameter.0] {
            Some(sum) => ops::add::into(sum, gradient).unwrap(),
            None => sums[used.parameter.0] = Some(gradient.clone()),
        }
    }
    sums.into_iter().map(Option::unwrap).collect()
}

/// Returns the CPU, and a GPU if there is one.
pub(crate) fn devices() -> Vec<Device> {
    let options = DeviceOptions::default();
    let mut devices = vec![Device::cpu(0, &options).unwrap()];
    match device::cuda::availability() {
        Ok(_) => devices.push(Device::cuda(0, 0, tensor::ops::FAMILIES, &options).unwrap()),
        Err(why) => system::skipped::report(system::skipped::Need::Gpu, &why.to_string()),
    }
    devices
}

/// Copies the recorded `gpt2` folder with a changed configuration.
pub(crate) fn copy(to: &Path, change: impl FnOnce(&mut Value)) {
    copy_of("gpt2", to, change);
}

/// Copies a recorded folder with a changed configuration.
pub(crate) fn copy_of(name: &str, to: &Path, change: impl FnOnce(&mut Value)) {
    let from = folder(name);
    std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
}
