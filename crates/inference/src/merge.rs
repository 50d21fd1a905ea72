//! Merges low-rank adapters into their weights.

use checkpoint::Target;
use device::DType;
use nn::{FolderTensor, HuggingFaceModel, Lora};
use tensor::{Shape, Tensor, ops};
use worker::Weights;

use run::Result;

/// The adapters of a model.
pub(crate) struct Adapters<'a> {
    /// Tensors of the model.
    pub(crate) model: &'a HuggingFaceModel,
    /// The adapters' matrices, named by module.
    pub(crate) tensors: &'a [FolderTensor],
    /// Ranks and scales.
    pub(crate) lora: &'a Lora,
    /// Returns the shape of a parameter by name.
    pub(crate) shape: &'a dyn Fn(&str) -> Option<Shape>,
}

impl Adapters<'_> {
    /// Adds scale · B · A to `target` if it has an adapter. `target` is an f32 tensor on the host that holds
    /// a tensor of the model.
    ///
    /// # Errors
    /// The matrices cannot be read.
    pub(crate) fn add_to(&self, target: &Target, weights: &dyn Weights) -> Result<()> {
        let is_own = |tensor: &&FolderTensor| {
            let [_, columns] = tensor.rows_and_columns();
            tensor.parameter == target.name && tensor.first_row * columns == target.first
        };
        let Some(tensor) = self.model.tensors.iter().find(is_own) else { return Ok(()) };
        let Some(module) = tensor.name.strip_suffix(".weight") else { return Ok(()) };
        let [a, b] = ["lora_A", "lora_B"].map(|part| {
            let name = format!("{module}.{part}.weight");
            self.tensors.iter().find(|tensor| tensor.name == name)
        });
        let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
        let a = self.read(a, target, weights)?;
        let b = self.read(b, target, weights)?;
        ops::scale::in_place(&b, self.lora.scale_of(module))?;
        let [rows, columns] = tensor.rows_and_columns();
        Ok(ops::linear::add_backward_input(&b, &a, &target.tensor.reshape([rows, columns])?)?)
    }

    fn read(&self, tensor: &FolderTensor, like: &Target, weights: &dyn Weights) -> Result<Tensor> {
        let [rows, columns] = tensor.rows_and_columns();
        let shape = (self.shape)(&tensor.parameter).unwrap_or_else(|| [rows, columns].into());
        let request = device::Request::new(device::Category::Parameter, "merge");
        let matrix = Tensor::empty(like.tensor.device(), [rows, columns], DType::F32, request)?;
        let name = tensor.parameter.clone();
        let first = tensor.first_row * columns;
        let target = Target { name, dtype: DType::F32, shape, first, tensor: matrix.clone() };
        weights.load(&mut std::iter::once(target))?;
        Ok(matrix)
    }
}
