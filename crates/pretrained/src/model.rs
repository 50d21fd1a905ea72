//! A folder checked against the model that it contains.

use std::path::Path;

use checkpoint::Target;
use nn::{AdapterConfig, HuggingFaceModel};
use system::file_error::FileContext;
use system::input;

use crate::copies::differs;
use crate::error::{PretrainedError, Result};
use crate::folder::{ADAPTER_CONFIG, Folder};
use crate::resized::{Means, is_shorter};
use crate::{layout, load};

/// Maximum size of an adapter configuration in bytes.
const MOST_CONFIG: u64 = 1 << 24;

/// A folder whose tensors have been checked against a model's by name and shape.
#[derive(Clone, Debug)]
pub struct PretrainedModel {
    folder: Folder,
    model: HuggingFaceModel,
    means: Means,
    id: String,
}

impl PretrainedModel {
    /// Opens the folder at `path` as `model`.
    ///
    /// # Errors
    /// Errors of [`Folder::open`], or the name of a tensor that is missing, unexpected or of another shape.
    pub fn open(path: &Path, model: HuggingFaceModel) -> Result<Self> {
        Self::from_folder(Folder::open(path)?, model, false)
    }

    /// Opens the folder at `path` as `model`, which may have more tokens than the folder. Missing rows are
    /// filled with the mean of the stored rows.
    pub fn open_resized(path: &Path, model: HuggingFaceModel) -> Result<Self> {
        Self::from_folder(Folder::open(path)?, model, true)
    }

    /// Opens the adapter folder at `path` as `adapters`.
    ///
    /// # Errors
    /// As for [`PretrainedModel::open`], or the keys of a configuration that describes other adapters.
    pub fn open_adapters(path: &Path, adapters: HuggingFaceModel) -> Result<Self> {
        let config = path.join(ADAPTER_CONFIG);
        if config.exists() {
            let refused = |what| PretrainedError::refused(&config, what);
            let text = input::read_text(&config, MOST_CONFIG).context(&config, "read it")?;
            AdapterConfig::parse(&text).map_err(refused)?;
        }
        Self::from_folder(Folder::open_adapters(path)?, adapters, false)
    }

    fn from_folder(folder: Folder, mut model: HuggingFaceModel, resizes: bool) -> Result<Self> {
        let is_missing = |prefix: &String| !folder.has_module(&model, prefix);
        let missing: Vec<String> =
            model.modules.iter().filter(|prefix| is_missing(prefix)).cloned().collect();
        let is_of_missing = |name: &str| missing.iter().any(|prefix| name.starts_with(prefix.as_str()));
        for tensors in std::iter::once(&mut model.tensors).chain(&mut model.variants) {
            tensors.retain(|tensor| !is_of_missing(&tensor.parameter));
        }
        let model = layout::in_form_of(&folder, model);
        layout::check(&folder, &model, resizes)?;
        for copy in &model.copies {
            if differs(&folder, (&copy.0, copy.1), model.prefix)? {
                let is_module = model.modules.iter().any(|prefix| copy.0.starts_with(prefix.as_str()));
                let how = match is_module {
                    true => "which its modules share here: train.predict_tokens = 1 keeps both",
                    false => "with which this model ties it: model.tied = false keeps both",
                };
                let what = format!("its {} differs from its {}, {how}", copy.0, copy.1);
                return Err(PretrainedError::refused(folder.path(), what));
            }
        }
        let id = folder.fingerprint()?;
        let means = Means::from_model(&model);
        Ok(PretrainedModel { folder, model, means, id })
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Returns a hash of the tensors' names, types, shapes and first elements.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns whether the folder holds the parameter `name`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.model.tensors.iter().any(|tensor| tensor.parameter == name)
    }

    /// Fills the targets that are parameters of the model or shards of them, and skips others.
    ///
    /// # Errors
    /// A file cannot be read, or a parameter has another shape.
    pub fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        for target in targets {
            self.fill(&target)?;
        }
        Ok(())
    }

    fn fill(&self, target: &Target) -> Result<()> {
        let own = || self.model.tensors.iter().filter(|tensor| tensor.parameter == target.name);
        let elements = |[rows, columns]: [usize; 2]| rows * columns;
        let held: usize = own().map(|tensor| elements(tensor.rows_and_columns())).sum();
        if held > 0 && held != target.shape.elements() {
            let what =
                format!("{} is {} in this model, and has {held} elements there", target.name, target.shape);
            return Err(PretrainedError::refused(self.folder.path(), what));
        }
        for tensor in own() {
            // Checked when the folder was opened.
            if let Some((_, stored)) = self.folder.find(&tensor.name, self.model.prefix) {
                match is_shorter(tensor, stored, &self.model) {
                    true => self.means.load(tensor, stored, target)?,
                    false => load::load(tensor, stored, target)?,
                }
            }
        }
        Ok(())
    }
}
