//! Tests of residual networks in folders with torchvision's names and layout.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use checkpoint::newest;
use inference::ExportOptions;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use worker::DeviceChoice;

use crate::common::golden;
use crate::common::runs::{RESNET, config, train_in};

fn export(model: &Path, output: &Path) {
    let model = model.to_owned();
    let output = output.to_owned();
    inference::export(&ExportOptions { model, output, ..ExportOptions::default() }).unwrap();
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn exported_networks_have_torchvisions_tensors_and_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let [run_dir, first, second] = ["run", "first", "second"].map(|name| directory.path().join(name));
    let sets = ["train.steps=2", "model.classes=10", "checkpoint.every=2", "parallel.data=2"];
    train_in(&run_dir, config(RESNET, &sets), DeviceChoice::Cpu).unwrap();
    export(&run_dir, &first);
    let bytes = fs::read(first.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let recorded: Value = serde_json::from_str(&fs::read_to_string(golden("resnet.json")).unwrap()).unwrap();
    let depth_18 = &recorded["cases"][0];
    let names = |part: &str| depth_18[part].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let counters = names("buffers").into_iter().filter_map(|name| {
        name.strip_suffix("running_mean").map(|norm| format!("{norm}num_batches_tracked"))
    });
    let expected: BTreeSet<_> =
        names("gradients").into_iter().chain(names("buffers")).chain(counters).collect();
    let actual: BTreeSet<_> = tensors.names().into_iter().map(ToOwned::to_owned).collect();
    assert_eq!(actual, expected);
    let counter = tensors.tensor("layer4.1.bn2.num_batches_tracked").unwrap();
    assert_eq!((counter.dtype(), counter.shape()), (Dtype::I64, &[][..]));
    // Two steps of eight micro-batches.
    assert_eq!(counter.data(), 16_i64.to_le_bytes());

    let state = newest(&run_dir).unwrap().unwrap().path().join("state.safetensors");
    let state = fs::read(state).unwrap();
    let state = SafeTensors::deserialize(&state).unwrap();
    let (ours, theirs) =
        (state.tensor("layer2.0.conv1.weight").unwrap(), tensors.tensor("layer2.0.conv1.weight").unwrap());
    assert_eq!((ours.shape(), theirs.shape()), (&[16, 3, 3, 8][..], &[16, 8, 3, 3][..]));
    let ours = floats(ours.data());
    let theirs = floats(theirs.data());
    for (index, value) in theirs.iter().enumerate() {
        let out = index / 72;
        let channel = index / 9 % 8;
        let pixel = index % 9;
        assert_eq!(*value, ours[(out * 9 + pixel) * 8 + channel]);
    }

    // The folder is read back, and written again byte for byte.
    export(&first, &second);
    assert!(fs::read(second.join("model.safetensors")).unwrap() == bytes);
    let config_text = |folder: &Path| fs::read_to_string(folder.join("config.json")).unwrap();
    assert_eq!(config_text(&second), config_text(&first));
    assert!(config_text(&first).contains("\"architecture\": \"resnet18\""), "{}", config_text(&first));
    let from = format!("model.from={first:?}");
    let text = "[data]\nkind = \"synthetic\"\n[train]\nsteps = 1\n";
    for grid in ["parallel.data=1", "parallel.pipeline=2"] {
        let sets = [from.as_str(), grid, "parallel.lanes=1"];
        let report = train_in(&directory.path().join(grid), config(text, &sets), DeviceChoice::Cpu).unwrap();
        assert!(report.summary.losses[0].is_finite());
    }
}
