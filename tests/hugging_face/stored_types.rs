//! Folders whose tensors have several types.

use std::collections::HashMap;
use std::fs;

use inference::ExportOptions;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};

use crate::families::folder;

/// Ernie 4.5 stores its routers in f32 beside other tensors in bf16.
#[test]
fn each_tensor_keeps_its_type() {
    let directory = tempfile::tempdir().unwrap();
    let [from, out] = ["from", "out"].map(|name| directory.path().join(name));
    let recorded = folder("families/ernie4.5-moe");
    fs::create_dir(&from).unwrap();
    fs::copy(recorded.join("config.json"), from.join("config.json")).unwrap();
    let bytes = fs::read(recorded.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let stored = |name: &str, tensor: &TensorView<'_>| {
        let is_wide = name.ends_with("mlp.gate.weight") || name.contains("moe_statics");
        match is_wide {
            // Values that bf16 does not have.
            true => (Dtype::F32, tensor.data().chunks(2).flat_map(|word| [1, 0, word[0], word[1]]).collect()),
            false => (tensor.dtype(), tensor.data().to_vec()),
        }
    };
    let all: Vec<(Dtype, Vec<u8>)> = tensors.iter().map(|(name, tensor)| stored(name, &tensor)).collect();
    let views: Vec<_> = tensors
        .iter()
        .zip(&all)
        .map(|((name, tensor), (dtype, data))| {
            (name.to_owned(), TensorView::new(*dtype, tensor.shape().to_vec(), data).unwrap())
        })
        .collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize_to_file(views, Some(metadata), &from.join("model.safetensors")).unwrap();
    let options = ExportOptions { model: from.clone(), output: out.clone(), ..Default::default() };
    inference::export(&options).unwrap();
    for file in ["model.safetensors", "config.json"] {
        let [before, after] = [&from, &out].map(|at| fs::read(at.join(file)).unwrap());
        assert!(before == after, "{file}");
    }
}
