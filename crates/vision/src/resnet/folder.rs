//! `resnet18` to `resnet152`: folders with torchvision's tensors, as timm publishes them.

use device::{DType, Description, Device, DeviceOptions};
use keys::Value;
use nn::{
    FolderConfig, FolderTensor, HuggingFaceConfig, HuggingFaceModel, Model, ModelSpec, Parameters, Stage,
};
use serde_json::json;

use super::model::ResNet;
use super::reader;
use super::sizes::{ResNetSizes, StemKind};

pub(super) const CONFIG: HuggingFaceConfig = HuggingFaceConfig {
    model_types: &["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"],
    keys,
    ignored: |config| {
        config.check(&reader::CONFIG).unwrap_or_default().into_iter().map(str::to_owned).collect()
    },
    tied: None,
};

/// Suffix of the names of counters among torchvision's buffers.
const COUNTER: &str = "num_batches_tracked";

fn keys(config: &FolderConfig) -> Result<Vec<(&'static str, Value)>, String> {
    config.check(&reader::CONFIG)?;
    let name = config.model_type()?;
    let depth: usize =
        name.trim_start_matches("resnet").parse().map_err(|_| format!("{name} has no depth"))?;
    let size = config.optional_count("image_size")?;
    let mut keys = vec![
        (ResNetSizes::depth, depth.into()),
        (ResNetSizes::width, config.number("width")?.unwrap_or(1.0).into()),
        (ResNetSizes::classes, config.count("num_classes")?.into()),
        (ResNetSizes::channels, config.optional_count("num_channels")?.unwrap_or(3).into()),
    ];
    if let Some(stem) = config.text("stem")? {
        let names = StemKind::ALL.map(StemKind::name);
        let entry = names.into_iter().find(|name| *name == stem);
        let entry = entry.ok_or_else(|| format!("its stem is {stem:?}, not one of {}", names.join(", ")))?;
        keys.push((ResNetSizes::stem, entry.into()));
    }
    keys.extend(size.map(|size| (ResNetSizes::image_size, size.into())));
    Ok(keys)
}

/// Describes the model in the folder's format; `None` if no model can have these sizes.
pub(super) fn model(sizes: &ResNetSizes) -> Option<HuggingFaceModel> {
    let device = Device::meta(0, Description::host(), &DeviceOptions::default()).ok()?;
    let parameters = Parameters::new(&device, 0, DType::F32);
    let model = ResNet::new(parameters, sizes, &Stage::whole(sizes.layers())).ok()?;
    let parameters = model.parameters().list().iter().map(|p| tensor(&p.name, p.weight.shape().dims()));
    let buffers = model.buffers().iter().map(|buffer| match buffer.name().ends_with(COUNTER) {
        true => FolderTensor::counter(buffer.name().to_owned()),
        false => tensor(buffer.name(), buffer.tensor().shape().dims()),
    });
    let settings = [
        ("architecture", json!(format!("resnet{}", sizes.depth))),
        ("image_size", json!(sizes.image_size)),
        ("num_channels", json!(sizes.channels)),
        ("num_classes", json!(sizes.classes)),
        ("stem", json!(sizes.stem.name())),
        ("width", json!(sizes.width)),
    ];
    Some(HuggingFaceModel {
        config: settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        prefix: "",
        tensors: parameters.chain(buffers).collect(),
        variants: Vec::new(),
        copies: Vec::new(),
        tables: Vec::new(),
        ignored: Vec::new(),
        is_part: false,
        unused: Vec::new(),
        unused_modules: Vec::new(),
        modules: Vec::new(),
        module_counts: &[],
    })
}

/// Returns the folder's tensor for a parameter of this shape. Kernels `[out, height, width, in]` are
/// channels-first in the folder.
fn tensor(name: &str, shape: &[usize]) -> FolderTensor {
    match *shape {
        [out, height, width, channels] => {
            FolderTensor::kernels(name.to_owned(), [out, channels, height, width])
        }
        _ => FolderTensor::whole(name.to_owned(), name.to_owned(), shape),
    }
}
