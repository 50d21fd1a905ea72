//! Writes a model folder, tensor by tensor.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::Target;
use device::{Category, DType, Device, DeviceOptions, Float, Request, dispatch};
use nn::{FolderTensor, HuggingFaceModel};
use safetensors::Dtype;
use safetensors::tensor::{View, serialize_to_file};
use serde_json::{Map, Value, json};
use system::file_error::FileContext;
use system::output::OutputFolder;
use tensor::{Shape, Tensor, TensorError};

use crate::error::{PretrainedError, Result};
use crate::folder::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG, INDEX, WEIGHTS};
use crate::tensor_file::StoredTensor;

/// Number of elements rounded at a time.
const PIECE: usize = 1 << 18;

/// Function that fills targets, which are named like the model's parameters.
pub type Load<'a> = &'a dyn Fn(&mut dyn Iterator<Item = Target>) -> Result<()>;

/// The kind of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderKind {
    /// A whole model.
    Model,
    /// Low-rank adapters in PEFT's format.
    Adapters,
}

impl FolderKind {
    /// Returns the file names of the tensors and the configuration.
    fn names(self) -> [&'static str; 2] {
        match self {
            FolderKind::Model => [WEIGHTS, CONFIG],
            FolderKind::Adapters => [ADAPTER_WEIGHTS, ADAPTER_CONFIG],
        }
    }
}

/// Contents of a folder to write.
pub struct Export<'a> {
    /// The folder's kind.
    pub kind: FolderKind,
    /// Description of the model's tensors and its configuration.
    pub model: HuggingFaceModel,
    /// Returns the shape of a parameter by name.
    pub shape: &'a dyn Fn(&str) -> Option<Shape>,
    /// Type of the written elements: f32, f16 or bf16.
    pub dtype: DType,
    /// Types of the tensors that keep another type than `dtype`, by name.
    pub other_dtypes: BTreeMap<String, DType>,
    /// Tensors of other parts, which are copied as they are.
    pub carried: Vec<(String, StoredTensor)>,
    /// Text of the configuration, if the model was read with one; otherwise it is generated.
    pub config: Option<String>,
    /// Files to copy into the folder, for example of a tokenizer.
    pub files: Vec<PathBuf>,
    /// (name, contents) of further files to write.
    pub contents: Vec<(&'static str, Vec<u8>)>,
    /// Maximum bytes of tensors in one file; only a single larger tensor may exceed it. Larger models are
    /// split over several files with an index.
    pub most_bytes: u64,
}

impl Export<'_> {
    /// Returns the type of a tensor's elements.
    fn dtype(&self, tensor: &FolderTensor) -> DType {
        self.other_dtypes.get(&tensor.name).copied().unwrap_or(self.dtype)
    }

    /// Returns the bytes of a tensor's elements.
    fn bytes(&self, tensor: &FolderTensor) -> usize {
        elements(tensor) * self.dtype(tensor).bytes()
    }
}

/// Writes the folder `path`, which must not exist. The folder appears under this name once it is complete.
///
/// # Errors
/// The folder exists, a file cannot be written, or weights cannot be read.
pub fn write_folder(path: &Path, export: Export<'_>, load: Load<'_>) -> Result<()> {
    let folder = OutputFolder::create(path).context(path, "write it")?;
    write_files(folder.directory(), &export, load)?;
    Ok(folder.publish().context(path, "write it")?)
}

fn write_files(path: &Path, export: &Export<'_>, load: Load<'_>) -> Result<()> {
    write_weights(path, export, load)?;
    let [_, config] = export.kind.names();
    let file = path.join(config);
    let config = export.config.clone().unwrap_or_else(|| config_text(export));
    fs::write(&file, config).context(&file, "write it")?;
    for from in &export.files {
        let to = path.join(from.file_name().unwrap_or_default());
        fs::copy(from, &to).context(from, "copy it")?;
    }
    for (name, contents) in &export.contents {
        let file = path.join(name);
        fs::write(&file, contents).context(&file, "write it")?;
    }
    Ok(())
}

/// Formats the configuration as transformers does: sorted keys, an indent of two.
fn config_text(export: &Export<'_>) -> String {
    let mut config = export.model.config.clone();
    let name = match export.dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    };
    if export.kind == FolderKind::Model {
        config.insert("dtype".to_owned(), json!(name));
        config.insert("torch_dtype".to_owned(), json!(name));
    }
    pretty(Value::Object(config))
}

/// Writes the tensors to one file, or to several files with an index.
fn write_weights(path: &Path, export: &Export<'_>, load: Load<'_>) -> Result<()> {
    let shards = shards(export);
    let [_, _, ..] = shards[..] else {
        let [weights, _] = export.kind.names();
        return write_tensors(&path.join(weights), &items(export).collect::<Vec<_>>(), export, load);
    };
    let mut files = Map::new();
    for (number, tensors) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", number + 1, shards.len());
        write_tensors(&path.join(&name), tensors, export, load)?;
        files.extend(tensors.iter().map(|tensor| (tensor.name().to_owned(), json!(name))));
    }
    let elements: usize = items(export).map(|tensor| tensor.elements()).sum();
    let size: usize = items(export).map(|tensor| tensor.bytes(export)).sum();
    let metadata = json!({ "total_parameters": elements, "total_size": size });
    let index = path.join(INDEX);
    let written = fs::write(&index, pretty(json!({ "metadata": metadata, "weight_map": files })));
    Ok(written.context(&index, "write it")?)
}

/// A tensor of an export.
#[derive(Clone, Copy)]
enum Item<'a> {
    /// A part of the model's parameters.
    Own(&'a FolderTensor),
    /// A tensor of another part, with its name.
    Carried(&'a (String, StoredTensor)),
}

impl Item<'_> {
    fn name(&self) -> &str {
        match self {
            Item::Own(tensor) => &tensor.name,
            Item::Carried((name, _)) => name,
        }
    }

    fn elements(&self) -> usize {
        match self {
            Item::Own(tensor) => elements(tensor),
            Item::Carried((_, tensor)) => tensor.shape().iter().product(),
        }
    }

    fn bytes(&self, export: &Export<'_>) -> usize {
        match self {
            Item::Own(tensor) => export.bytes(tensor),
            Item::Carried((_, tensor)) => tensor.bytes(),
        }
    }
}

/// Returns all tensors of an export.
fn items<'a>(export: &'a Export<'_>) -> impl Iterator<Item = Item<'a>> {
    export.model.tensors.iter().map(Item::Own).chain(export.carried.iter().map(Item::Carried))
}

/// Divides the tensors over files, in order.
fn shards<'a>(export: &'a Export<'_>) -> Vec<Vec<Item<'a>>> {
    let (mut shards, mut bytes): (Vec<Vec<Item<'_>>>, u64) = (Vec::new(), 0);
    for tensor in items(export) {
        let own = tensor.bytes(export) as u64;
        match shards.last_mut().filter(|_| bytes.saturating_add(own) <= export.most_bytes) {
            Some(shard) => shard.push(tensor),
            None => {
                shards.push(vec![tensor]);
                bytes = 0;
            }
        }
        bytes += own;
    }
    shards
}

fn elements(tensor: &FolderTensor) -> usize {
    tensor.shape.iter().product()
}

/// Formats a JSON value with an indent of two.
fn pretty(value: Value) -> String {
    // A map of JSON values can always be written.
    serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
}

fn write_tensors<'a>(
    path: &Path,
    tensors: &[Item<'a>],
    export: &'a Export<'a>,
    load: Load<'a>,
) -> Result<()> {
    let device = Device::cpu(0, &DeviceOptions::default()).map_err(TensorError::from)?;
    let failure = RefCell::new(None);
    let view = |item: Item<'a>| {
        let lazy = LazyTensor { item, export, load, device: &device, failure: &failure };
        (item.name().to_owned(), lazy)
    };
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    // The format's writer creates a file that only this user can read.
    let created = fs::File::create(path).and_then(|file| file.metadata());
    let permissions = created.context(path, "create it")?.permissions();
    let written = serialize_to_file(tensors.iter().copied().map(view), Some(metadata), path);
    if let Some(error) = failure.take() {
        return Err(error);
    }
    written.map_err(|error| PretrainedError::refused(path, format!("it was not written: {error}")))?;
    Ok(fs::set_permissions(path, permissions).context(path, "set its permissions")?)
}

/// A tensor whose elements are read only when they are written.
struct LazyTensor<'a> {
    item: Item<'a>,
    export: &'a Export<'a>,
    load: Load<'a>,
    device: &'a Device,
    /// The first error, stored here because the safetensors writer cannot return it.
    failure: &'a RefCell<Option<PretrainedError>>,
}

impl View for LazyTensor<'_> {
    fn dtype(&self) -> Dtype {
        let tensor = match self.item {
            Item::Own(tensor) => tensor,
            Item::Carried((_, tensor)) => return tensor.stored(),
        };
        match self.export.dtype(tensor) {
            _ if tensor.counter => Dtype::I64,
            DType::Bf16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
            _ => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        match self.item {
            Item::Own(tensor) => &tensor.shape,
            Item::Carried((_, tensor)) => tensor.shape(),
        }
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if self.failure.borrow().is_some() {
            return Cow::default();
        }
        // Tensors of many sizes would each keep a segment.
        let freed = |bytes| Ok(self.device.empty_cache().map(|()| bytes).map_err(TensorError::from)?);
        match self.bytes().and_then(freed) {
            Ok(bytes) => bytes.into(),
            Err(error) => {
                self.failure.replace(Some(error));
                Cow::default()
            }
        }
    }

    fn data_len(&self) -> usize {
        match self.item {
            Item::Own(tensor) if tensor.counter => size_of::<i64>(),
            item => item.bytes(self.export),
        }
    }
}

impl LazyTensor<'_> {
    fn bytes(&self) -> Result<Vec<u8>> {
        let tensor = match self.item {
            Item::Own(tensor) => tensor,
            Item::Carried((_, tensor)) => return tensor.read_stored(),
        };
        if tensor.counter {
            let count = self.read(tensor, DType::U32)?.to_vec::<u32>()?;
            return Ok(count.first().map_or(0, |count| i64::from(*count)).to_le_bytes().to_vec());
        }
        let whole = self.read(tensor, DType::F32)?;
        let mut bytes = Vec::with_capacity(self.data_len());
        dispatch!(self.export.dtype(tensor), T => {
            let mut rounded = Vec::new();
            each_piece(tensor, &whole.read::<f32>()?, &mut |values| {
                rounded.resize(values.len(), <T as Float>::from_f32(0.0));
                <T as Float>::round(values, &mut rounded);
                bytes.extend(rounded.iter().flat_map(|value| value.to_le_bytes()));
            });
        }, _ => {});
        Ok(bytes)
    }

    /// Reads the elements in the parameter's order.
    fn read(&self, tensor: &FolderTensor, dtype: DType) -> Result<Tensor> {
        let FolderTensor { parameter, first_row, .. } = tensor;
        let [rows, columns] = tensor.rows_and_columns();
        let Some(shape) = (self.export.shape)(parameter) else {
            let what = format!("the model has no parameter {parameter}");
            return Err(PretrainedError::refused(Path::new(&tensor.name), what));
        };
        let request = Request::new(Category::Parameter, "export");
        let values = Tensor::empty(self.device, [rows * columns], dtype, request)?;
        let first = first_row * columns;
        let target = Target { name: parameter.clone(), dtype, shape, first, tensor: values.clone() };
        (self.load)(&mut std::iter::once(target))?;
        Ok(values)
    }
}

/// Converts elements from the parameter's order to the folder's, and passes them to `take` in chunks.
fn each_piece(tensor: &FolderTensor, values: &[f32], take: &mut dyn FnMut(&[f32])) {
    if !tensor.transposed {
        return values.chunks(PIECE).for_each(take);
    }
    let [_, rows, columns] = tensor.matrices();
    let mut line = Vec::<f32>::new();
    for matrix in values.chunks(rows * columns) {
        for column in 0..columns {
            line.resize(rows, 0.0);
            for (row, value) in matrix.iter().skip(column).step_by(columns).enumerate() {
                line[tensor.position(row, rows)] = *value;
            }
            take(&line);
        }
    }
}
