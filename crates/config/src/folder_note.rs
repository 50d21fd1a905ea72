//! Messages about differences between a run and its model's folder.

use crate::choices::DataKind;
use crate::folder;
use crate::run_config::RunConfig;
use crate::sections::LoraSection;

impl RunConfig {
    /// Returns messages about settings in the folder's `config.json` that the run does not follow: unknown
    /// settings, which are ignored, and overridden ones.
    #[must_use]
    pub fn folder_notes(&self) -> Vec<String> {
        let mut notes = folder::notes(self).unwrap_or_default();
        notes.extend(folder::adapters_note(self));
        notes
    }

    /// Returns a message if sequences are longer than the context length of the model in `model.from`.
    #[must_use]
    pub fn context_advice(&self) -> Option<String> {
        let folder = self.model.folder()?;
        let made_for = folder::context_of(folder, self.model.families())?;
        let context = self.model.examples().units();
        (context as u64 > made_for).then(|| {
            format!(
                "model.context = {context} is above the {made_for} positions that the model in {} was made \
                 for (max_position_embeddings): it has not learnt greater distances, and \
                 model.rope_scaling may help",
                folder.display()
            )
        })
    }

    /// Returns a warning if the file has a section `[lora]` but no key that enables adapters.
    #[must_use]
    pub fn adapters_warning(&self) -> Option<String> {
        let origin = self.origins.of_section("lora")?;
        (self.lora.rank == 0 && !self.origins.is_set(LoraSection::rank)).then(|| {
            format!(
                "{origin}: [lora] makes no adapters without lora.rank, and the model itself is trained; \
                 lora.rank = 0 says so"
            )
        })
    }

    /// Returns a warning if preference training uses dropout, which its reference model does not.
    #[must_use]
    pub fn dropout_warning(&self) -> Option<String> {
        if self.data.kind != DataKind::Preference {
            return None;
        }
        let is_positive = |value: &keys::Value| matches!(value, keys::Value::Float(value) if *value > 0.0);
        let model = self
            .model
            .value("model.dropout")
            .filter(is_positive)
            .map(|value| ("model.dropout", value.to_string()));
        let adapters = (self.lora.dropout > 0.0).then(|| ("lora.dropout", self.lora.dropout.to_string()));
        let (key, value) = model.or(adapters)?;
        Some(format!(
            "{key} = {value}: preferences are trained with dropout, which the scores of the reference do not \
             have; TRL trains them without"
        ))
    }
}
