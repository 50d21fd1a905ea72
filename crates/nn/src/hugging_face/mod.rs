//! Folders of Hugging Face: what a family reads from their `config.json`, and where each of their tensors
//! lies among a model's parameters.
//!
//! A family translates in both directions, and nothing else of the house knows a name of theirs.

mod config;
pub(crate) mod gpt2;
pub(crate) mod llama;

pub use config::FolderConfig;

use keys::Value;
use serde_json::Map;

/// Keys of a configuration, each as `model.key` with its value.
pub type FolderKeys = Vec<(&'static str, Value)>;

/// The translation of a `config.json` into keys of `[model]`.
#[derive(Clone, Copy, Debug)]
pub struct HuggingFaceConfig {
    /// Values of `model_type` that the family computes.
    pub model_types: &'static [&'static str],
    /// Returns the keys that follow from a configuration. Errors: a
    /// setting that the family does not compute, named with what there is.
    pub keys: fn(&FolderConfig) -> std::result::Result<FolderKeys, String>,
}

/// A model as a folder of Hugging Face holds it.
#[derive(Clone, Debug)]
pub struct HuggingFaceModel {
    /// The `config.json`, without the type of the tensors and the version of the writer.
    pub config: Map<String, serde_json::Value>,
    /// Prefix of the tensors' names, which folders of a model without its head leave out.
    pub prefix: &'static str,
    /// All tensors. Together they are all parameters of the model, each once.
    pub tensors: Vec<FolderTensor>,
    /// Ends of the names of tensors that hold nothing to be learnt, or a copy, and that folders may have.
    pub ignored: Vec<&'static str>,
}

/// A tensor of a folder, and the rows of a parameter that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderTensor {
    /// Its name in the folder.
    pub name: String,
    /// Its shape in the folder.
    pub shape: Vec<usize>,
    /// The parameter's name.
    pub parameter: String,
    /// The first of its rows in the parameter.
    pub first_row: usize,
    /// Whether the parameter has the tensor's columns as its rows.
    pub transposed: bool,
}

impl FolderTensor {
    /// A tensor that is all of `parameter`, in its shape.
    pub(crate) fn whole(name: String, parameter: String, shape: &[usize]) -> Self {
        FolderTensor { name, shape: shape.to_vec(), parameter, first_row: 0, transposed: false }
    }

    /// A matrix that is all of `parameter`, transposed. `shape` is the parameter's.
    pub(crate) fn transposed(name: String, parameter: String, [rows, columns]: [usize; 2]) -> Self {
        FolderTensor { name, shape: vec![columns, rows], parameter, first_row: 0, transposed: true }
    }

    /// Its rows and columns as the parameter has them; the elements of a vector are rows of one column.
    #[must_use]
    pub fn rows_and_columns(&self) -> [usize; 2] {
        let [rows, columns] = match self.shape[..] {
            [] => [1, 1],
            [rows] => [rows, 1],
            [rows, ref rest @ ..] => [rows, rest.iter().product()],
        };
        if self.transposed { [columns, rows] } else { [rows, columns] }
    }
}
