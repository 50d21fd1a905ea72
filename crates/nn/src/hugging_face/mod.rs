//! Hugging Face folders: the translation of their `config.json`, and the positions of their tensors among a
//! model's parameters.
//!
//! A family translates in both directions. Hugging Face's names stand here and in `models/*/folder`.

mod config;
pub(crate) mod gpt2;
mod peft;
mod peft_patterns;
mod peft_targets;
pub(crate) mod readers;

pub use config::FolderConfig;
pub(crate) use peft::ADAPTER;
pub use peft::AdapterConfig;

use keys::Value;
use serde_json::Map;

/// Keys of a configuration, each as `model.key` with its value.
pub type FolderKeys = Vec<(&'static str, Value)>;

/// The translation of a `config.json` into keys of `[model]`.
#[derive(Clone, Copy, Debug)]
pub struct HuggingFaceConfig {
    /// Values of `model_type` that the family implements.
    pub model_types: &'static [&'static str],
    /// Returns the keys that correspond to a configuration.
    ///
    /// # Errors
    /// An unsupported setting, named with the supported ones.
    pub keys: fn(&FolderConfig) -> std::result::Result<FolderKeys, String>,
    /// Returns the settings that the translation ignores, by name.
    pub ignored: fn(&FolderConfig) -> Vec<String>,
    /// The head that some models share with their embedding.
    pub tied: Option<TiedHead>,
}

/// The output head of models that may share its weight with the table of embeddings. A folder may hold both
/// although its configuration ties them; where they differ, both are kept, as in transformers.
#[derive(Clone, Copy, Debug)]
pub struct TiedHead {
    /// The key of `[model]` that ties them.
    pub key: &'static str,
    /// The head's tensor.
    pub head: &'static str,
    /// The table's tensor.
    pub embedding: &'static str,
    /// Prefix of the tensors' names, as in [`HuggingFaceModel::prefix`].
    pub prefix: &'static str,
}

/// A model in Hugging Face's format.
#[derive(Clone, Debug)]
pub struct HuggingFaceModel {
    /// The `config.json`, without the tensors' type and the writer's version.
    pub config: Map<String, serde_json::Value>,
    /// Prefix of the tensors' names, absent in folders of a model without its head.
    pub prefix: &'static str,
    /// All tensors. Together they contain each parameter of the model once.
    pub tensors: Vec<FolderTensor>,
    /// Names of tensors that a folder may contain a second time, each with the name of the tensor that it
    /// repeats. They are written if the folder that the model came from has them.
    pub copies: Vec<(&'static str, &'static str)>,
    /// Names of the tensors with a row for each token, which a folder with fewer tokens may lack rows of.
    pub tables: Vec<&'static str>,
    /// Suffixes of tensor names that folders may contain and that are not parameters: masks, copies.
    pub ignored: Vec<&'static str>,
}

/// A tensor of a folder, and the rows of a parameter that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderTensor {
    /// The tensor's name in the folder.
    pub name: String,
    /// The tensor's shape in the folder.
    pub shape: Vec<usize>,
    /// The parameter's name.
    pub parameter: String,
    /// The first of the tensor's rows in the parameter.
    pub first_row: usize,
    /// Whether the tensor is the transpose of the parameter; of a tensor with more dimensions, whether each
    /// of its rows is the transpose of a matrix of the parameter.
    pub transposed: bool,
    /// Whether the rows of both halves of each of the parameter's matrices take turns in the tensor, which is
    /// transposed; a row of a tensor with two dimensions is then a matrix of one column.
    pub interleaved: bool,
    /// Whether the tensor is a 64-bit integer, of a u32 here.
    pub counter: bool,
}

impl FolderTensor {
    /// Returns a tensor that is all of `parameter`, in its shape.
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

    /// Returns kernels `[out, in, height, width]`, which are `[out, height, width, in]` here.
    #[must_use]
    pub fn kernels(name: String, shape: [usize; 4]) -> Self {
        FolderTensor { transposed: true, ..Self::whole(name.clone(), name, &shape) }
    }

    /// Returns a scalar count, which is `[1]` here.
    #[must_use]
    pub fn counter(name: String) -> Self {
        FolderTensor { counter: true, ..Self::whole(name.clone(), name, &[]) }
    }

    /// Returns a matrix that is all of `parameter`, transposed. `shape` is the parameter's.
    pub(crate) fn transposed(name: String, parameter: String, [rows, columns]: [usize; 2]) -> Self {
        FolderTensor { transposed: true, ..Self::whole(name, parameter, &[columns, rows]) }
    }

    /// Rows and columns in the parameter; a vector has rows of one column.
    #[must_use]
    pub fn rows_and_columns(&self) -> [usize; 2] {
        let [rows, columns] = match self.shape[..] {
            [] => [1, 1],
            [rows] => [rows, 1],
            [rows, ref rest @ ..] => [rows, rest.iter().product()],
        };
        if self.transposed && self.shape.len() == 2 { [columns, rows] } else { [rows, columns] }
    }

    /// Number, rows and columns of the matrices in the parameter that the tensor has transposed.
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
