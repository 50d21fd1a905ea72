//! Hugging Face folders: translates their `config.json`, and maps their tensors to a model's parameters.
//!
//! Each family translates in both directions. Hugging Face's names appear only here and in `models/*/folder`.

mod config;
pub(crate) mod gpt2;
mod nearest;
mod peft;
mod peft_patterns;
mod peft_targets;
pub(crate) mod readers;

pub use config::FolderConfig;
pub use nearest::nearest_family;
pub(crate) use peft::ADAPTER;
pub use peft::AdapterConfig;

use keys::Value;
use serde_json::Map;

/// Configuration keys, each as `model.key` with its value.
pub type FolderKeys = Vec<(&'static str, Value)>;

/// Translation of a `config.json` into keys of `[model]`.
#[derive(Clone, Copy, Debug)]
pub struct HuggingFaceConfig {
    /// Values of `model_type` that the family supports.
    pub model_types: &'static [&'static str],
    /// Returns the keys that correspond to a configuration.
    ///
    /// # Errors
    /// An unsupported setting, with the supported values.
    pub keys: fn(&FolderConfig) -> std::result::Result<FolderKeys, String>,
    /// Returns the names of settings that the translation ignores.
    pub ignored: fn(&FolderConfig) -> Vec<String>,
    /// The output head, if models of the family may share its weight with the embedding.
    pub tied: Option<TiedHead>,
}

/// An output head that may share its weight with the embedding table. A folder may contain both tensors
/// although its configuration ties them. If they differ, both are kept, as in transformers.
#[derive(Clone, Copy, Debug)]
pub struct TiedHead {
    /// The key of `[model]` that ties the two.
    pub key: &'static str,
    /// Name of the head's tensor.
    pub head: &'static str,
    /// Name of the embedding table's tensor.
    pub embedding: &'static str,
    /// Prefix of tensor names, as in [`HuggingFaceModel::prefix`].
    pub prefix: &'static str,
}

/// A model in Hugging Face's format.
#[derive(Clone, Debug)]
pub struct HuggingFaceModel {
    /// Contents of `config.json`, without the dtype and the writer's version.
    pub config: Map<String, serde_json::Value>,
    /// Prefix of tensor names; absent in folders of a model without its head.
    pub prefix: &'static str,
    /// All tensors; together they contain each parameter of the model once.
    pub tensors: Vec<FolderTensor>,
    /// Lists of tensors that a folder may have instead of `tensors`, with other names or in other parts.
    pub variants: Vec<Vec<FolderTensor>>,
    /// Tensors that a folder may repeat: (name of the copy, name of the original). They are written if the
    /// source folder had them.
    pub copies: Vec<(String, &'static str)>,
    /// Names of tensors with a row per token; a folder with fewer tokens may have fewer rows.
    pub tables: Vec<&'static str>,
    /// Suffixes of tensors that folders may contain but that are not parameters, such as masks and copies.
    pub ignored: Vec<&'static str>,
    /// Whether the folder also has other parts, such as a model of images, whose tensors are no parameters.
    pub is_part: bool,
    /// Prefixes of tensors that a folder may have and the model does not use, such as keys of layers that
    /// share others. Exports keep them.
    pub unused: Vec<String>,
    /// Prefixes of such tensors of modules that predict later tokens.
    pub unused_modules: Vec<String>,
    /// Prefixes of the parameters of the modules that predict later tokens, in the order of the modules. A
    /// folder may have no tensor of a module.
    pub modules: Vec<String>,
    /// Settings of a `config.json` with the number of these modules.
    pub module_counts: &'static [&'static str],
}

impl HuggingFaceModel {
    /// Returns the language model alone, with the names that it has in a folder of its own.
    #[must_use]
    pub fn alone(mut self) -> Self {
        for tensor in self.tensors.iter_mut().filter(|_| self.is_part) {
            if let Some(rest) = tensor.name.strip_prefix(LANGUAGE_PART) {
                tensor.name = format!("model.{rest}");
            }
        }
        HuggingFaceModel { is_part: false, ..self }
    }
}

/// Prefix of the language model's tensors in a folder with other parts.
pub const LANGUAGE_PART: &str = "model.language_model.";

/// A tensor of a folder, and the rows of a parameter that it contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderTensor {
    /// Name of the tensor in the folder.
    pub name: String,
    /// Shape of the tensor in the folder.
    pub shape: Vec<usize>,
    /// Name of the parameter.
    pub parameter: String,
    /// Index of the tensor's first row within the parameter.
    pub first_row: usize,
    /// Whether the tensor is the transpose of the parameter. If it has more than two dimensions, whether each
    /// of its rows is the transpose of one of the parameter's matrices.
    pub transposed: bool,
    /// Whether the rows of the two halves of each of the parameter's matrices alternate in the transposed
    /// tensor. In a two-dimensional tensor, each row is then a matrix of one column.
    pub interleaved: bool,
    /// Whether the tensor is a 64-bit integer; the parameter is u32.
    pub counter: bool,
}

impl FolderTensor {
    /// Creates a tensor that contains all of `parameter`, in the same shape.
    #[must_use]
    pub fn whole(name: String, parameter: String, shape: &[usize]) -> Self {
        let shape = shape.to_vec();
        FolderTensor {
            name,
            shape,
            parameter,
            first_row: 0,
            transposed: false,
            interleaved: false,
            counter: false,
        }
    }

    /// Creates a tensor of convolution kernels `[out, in, height, width]`; the parameter is `[out, height,
    /// width, in]`.
    #[must_use]
    pub fn kernels(name: String, shape: [usize; 4]) -> Self {
        FolderTensor { transposed: true, ..Self::whole(name.clone(), name, &shape) }
    }

    /// Creates a scalar counter; the parameter has shape `[1]`.
    #[must_use]
    pub fn counter(name: String) -> Self {
        FolderTensor { counter: true, ..Self::whole(name.clone(), name, &[]) }
    }

    /// Creates a tensor that is the transpose of `parameter`, whose shape is `[rows, columns]`.
    pub(crate) fn transposed(name: String, parameter: String, [rows, columns]: [usize; 2]) -> Self {
        FolderTensor { transposed: true, ..Self::whole(name, parameter, &[columns, rows]) }
    }

    /// Rows and columns within the parameter; a vector has one column.
    #[must_use]
    pub fn rows_and_columns(&self) -> [usize; 2] {
        let [rows, columns] = match self.shape[..] {
            [] => [1, 1],
            [rows] => [rows, 1],
            [rows, ref rest @ ..] => [rows, rest.iter().product()],
        };
        if self.transposed && self.shape.len() == 2 { [columns, rows] } else { [rows, columns] }
    }

    /// Number, rows and columns of the parameter's matrices that the tensor stores transposed.
    #[must_use]
    pub fn matrices(&self) -> [usize; 3] {
        match (&self.shape[..], self.rows_and_columns()) {
            ([count, channels, height, width], _) => [*count, height * width, *channels],
            ([count, columns, rows], _) => [*count, *rows, *columns],
            ([count, rows], _) if self.interleaved => [*count, *rows, 1],
            (_, [rows, columns]) => [1, rows, columns],
        }
    }

    /// Returns the position in the tensor of row `row` of one of its matrices of `rows` rows.
    #[must_use]
    pub fn position(&self, row: usize, rows: usize) -> usize {
        match (self.interleaved, row < rows / 2) {
            (false, _) => row,
            (true, true) => 2 * row,
            (true, false) => 2 * (row - rows / 2) + 1,
        }
    }
}
