//! Folders that are read and written again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use checkpoint::Target;
use device::{Category, DType, Device, DeviceOptions, Request};
use nn::{FolderTensor, HuggingFaceModel, Parameters, Recompute, Stage};
use pretrained::{Export, Folder, FolderKind, PretrainedModel, in_form_of, write_folder};
use serde_json::json;
use tensor::{Shape, Tensor};

use super::support::{IN_F32, MODELS, config, fill, folder, layout, load, open};

/// Writes the contents of the folder `from` to `to`.
fn export(from: &Path, to: &Path, dtype: DType) {
    let model = layout(&config(from).unwrap());
    export_as(in_form_of(&Folder::open(from).unwrap(), model), from, to, dtype);
}

/// Writes the contents of the folder `from` to `to` with the tensors of `folder`.
fn export_as(mut folder: HuggingFaceModel, from: &Path, to: &Path, dtype: DType) {
    let config = config(from).unwrap();
    let weights = open(from).unwrap();
    let device = Device::meta(0, device::Description::host(), &DeviceOptions::default()).unwrap();
    let stage = Stage::whole(config.layers());
    let model = config.model.build(Parameters::new(&device, 1, DType::F32), &stage, Recompute::NONE).unwrap();
    let parameters = model.parameters().list().iter().map(|p| (p.name.clone(), p.weight.shape()));
    let buffers = model.buffers().iter().map(|buffer| (buffer.name().to_owned(), buffer.tensor().shape()));
    let shapes: BTreeMap<String, Shape> = parameters.chain(buffers).collect();
    for (copy, of) in folder.copies.clone() {
        let original = folder.tensors.iter().find(|tensor| tensor.name == of).cloned();
        let copied = original.map(|original| FolderTensor { name: copy.to_owned(), ..original });
        folder.tensors.extend(copied.filter(|copied| weights.folder().tensors().contains_key(&copied.name)));
    }
    let export = Export {
        kind: FolderKind::Model,
        model: folder,
        shape: &|name| shapes.get(name).copied(),
        dtype,
        other_dtypes: BTreeMap::new(),
        carried: Vec::new(),
        config: None,
        files: Vec::new(),
        contents: Vec::new(),
        most_bytes: u64::MAX,
    };
    write_folder(to, export, &|targets| weights.load(targets)).unwrap();
}

#[test]
fn reading_then_writing_gives_the_same_bytes() {
    for name in MODELS.iter().chain(IN_F32) {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("whole");
        let [dtype, other] = match name.contains('/') {
            true => [DType::Bf16, DType::F32],
            false => [DType::F32, DType::Bf16],
        };
        export(&folder(name), &to, dtype);
        let [before, after] = [&folder(name), &to].map(|at| fs::read(at.join("model.safetensors")).unwrap());
        assert!(before == after, "{name}");
        // The written configuration describes the same model.
        assert_eq!(config(&to).unwrap().model.values(), config(&folder(name)).unwrap().model.values());
        // The same in another type: written, read and written again.
        let [cast, again] = ["cast", "again"].map(|name| directory.path().join(name));
        export(&to, &cast, other);
        export(&cast, &again, other);
        let [cast, again] = [cast, again].map(|at| fs::read(at.join("model.safetensors")).unwrap());
        let [less, more] = if cast.len() < after.len() { [&cast, &after] } else { [&after, &cast] };
        assert!(cast == again && less.len() < more.len() * 11 / 20, "{name}");
    }
}

/// Folders as transformers 5 writes them have the weights of the released form, and both are kept.
#[test]
fn released_and_rewritten_folders_have_the_same_weights() {
    for (name, released, shape) in [
        ("families/olmo-hybrid", "model.layers.3.post_attention_layernorm.weight", [48].as_slice()),
        ("families/olmo-hybrid", "model.layers.0.linear_attn.v_conv1d.weight", &[96, 1, 4]),
        ("families/kimi-linear", "model.layers.0.mlp.up_proj.weight", &[80, 48]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let [to, again] = ["released", "again"].map(|name| directory.path().join(name));
        let model = layout(&config(&folder(name)).unwrap());
        export_as(model, &folder(name), &to, DType::Bf16);
        let stored = Folder::open(&to).unwrap();
        assert_eq!(stored.tensors()[released].shape(), shape, "{name}");
        let recorded = Folder::open(&folder(name)).unwrap();
        assert!(recorded.tensors().get(released).is_none_or(|tensor| tensor.shape() != shape), "{name}");
        export(&to, &again, DType::Bf16);
        let [before, after] = [&to, &again].map(|at| fs::read(at.join("model.safetensors")).unwrap());
        assert!(before == after, "{name}");
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let [one, other] = [&folder(name), &to].map(|at| load(at, &device, DType::F32));
        for (one, other) in one.parameters().list().iter().zip(other.parameters().list()) {
            let [expected, actual] =
                [one, other].map(|p| p.weight.tensor().unwrap().to_vec::<f32>().unwrap());
            assert_eq!(expected, actual, "{name} {}", one.name);
        }
    }
}

#[test]
fn written_files_have_the_permissions_of_a_new_file() {
    let directory = tempfile::tempdir().unwrap();
    let [plain, folder_of_model] = ["plain", "model"].map(|name| directory.path().join(name));
    fs::write(&plain, "").unwrap();
    export(&folder(MODELS[0]), &folder_of_model, DType::F32);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    for entry in fs::read_dir(&folder_of_model).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), mode(&plain), "{}", path.display());
    }
}

#[test]
fn shards_and_all_types_give_the_same_weights() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    for name in MODELS {
        let whole = load(&folder(name), &device, DType::F32);
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let directory = tempfile::tempdir().unwrap();
            let [one, shards] = ["one", "shards"].map(|name| directory.path().join(name));
            export(&folder(name), &one, dtype);
            shard(&one, &shards, 3);
            let sharded = load(&shards, &device, DType::F32);
            let lists = whole.parameters().list().iter().zip(sharded.parameters().list());
            for (parameter, copy) in lists {
                let [expected, actual] =
                    [parameter, copy].map(|p| p.weight.tensor().unwrap().to_vec::<f32>().unwrap());
                let rounded = |value: &f32| match dtype {
                    DType::Bf16 => device::bf16::from_f32(*value).to_f32(),
                    DType::F16 => device::f16::from_f32(*value).to_f32(),
                    _ => *value,
                };
                assert!(expected.iter().map(rounded).eq(actual), "{name} {dtype} {}", parameter.name);
            }
        }
    }
}

/// Splits the single tensor file of `from` into `count` files with an index in `to`.
pub(crate) fn shard(from: &Path, to: &Path, count: usize) {
    fs::create_dir(to).unwrap();
    fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut map = serde_json::Map::new();
    for shard in 0..count {
        let shard_name = format!("model-{:05}-of-{count:05}.safetensors", shard + 1);
        let own: Vec<_> =
            file.tensors().into_iter().enumerate().filter(|(n, _)| n % count == shard).collect();
        own.iter().for_each(|(_, (name, _))| drop(map.insert(name.clone(), json!(shard_name))));
        let own = own.iter().map(|(_, (name, view))| (name.clone(), view));
        safetensors::tensor::serialize_to_file(own, None, &to.join(&shard_name)).unwrap();
    }
    let index = json!({ "metadata": {}, "weight_map": map });
    fs::write(to.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn a_stage_and_a_shard_of_a_parameter_read_only_their_elements() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    // A model with embeddings for each layer has no stages.
    for name in MODELS.iter().filter(|name| **name != "families/gemma4") {
        let config = config(&folder(name)).unwrap();
        let weights = open(&folder(name)).unwrap();
        let whole = load(&folder(name), &device, DType::F32);
        let model_layers = config.layers();
        for layer in 0..model_layers {
            let stage = Stage { layers: layer..layer + 1, model_layers };
            let model =
                config.model.build(Parameters::new(&device, 1, DType::F32), &stage, Recompute::NONE).unwrap();
            fill(&*model, &weights);
            for parameter in model.parameters().list() {
                let other = &whole.parameters().list()[whole.parameters().find(&parameter.name).unwrap().0];
                let [own, all] =
                    [parameter, other].map(|p| p.weight.tensor().unwrap().to_vec::<f32>().unwrap());
                assert!(own == all, "{name}: {}", parameter.name);
                for (first, count) in [(0, 1), (own.len() / 3, own.len() / 2), (own.len() - 1, 1)] {
                    let request = Request::new(Category::Parameter, "part");
                    let tensor = Tensor::empty(&device, [count], DType::F32, request).unwrap();
                    let target = Target {
                        name: parameter.name.clone(),
                        dtype: DType::F32,
                        shape: parameter.weight.shape(),
                        first,
                        tensor: tensor.clone(),
                    };
                    weights.load(&mut std::iter::once(target)).unwrap();
                    let part = tensor.to_vec::<f32>().unwrap();
                    assert!(part == own[first..first + count], "{name}: {} from {first}", parameter.name);
                }
            }
        }
    }
}

#[test]
fn folders_without_the_head_or_with_masks_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = fs::read(folder("gpt2").join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<_> = file.tensors();
    tensors.iter_mut().for_each(|(name, _)| *name = name.replace("transformer.", ""));
    let mask = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1, 1], &[0; 4]).unwrap();
    tensors.push(("h.0.attn.bias".to_owned(), mask));
    let to = directory.path();
    safetensors::tensor::serialize_to_file(tensors, None, &to.join("model.safetensors")).unwrap();
    let read = PretrainedModel::open(to, layout(&config(&folder("gpt2")).unwrap())).unwrap();
    assert_eq!(read.folder().tensors().len(), Folder::open(&folder("gpt2")).unwrap().tensors().len() + 1);
}
