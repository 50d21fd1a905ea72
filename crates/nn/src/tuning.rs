//! The selection of trained parameters: all, all that no pattern freezes, or adapters.

use glob::Pattern;

use crate::hugging_face::FolderTensor;
use crate::lora::Lora;

/// Selects a model's trained parameters; by default all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    frozen: Vec<Pattern>,
    lora: Option<Lora>,
}

impl Tuning {
    /// Freezes the parameters whose names match one of the globs `freeze`.
    ///
    /// # Errors
    /// A description of an invalid glob.
    pub fn new(freeze: &[String]) -> Result<Self, String> {
        let pattern = |glob: &String| {
            Pattern::new(glob).map_err(|error| format!("\"{glob}\" is no glob: {}", error.msg))
        };
        Ok(Tuning { frozen: freeze.iter().map(pattern).collect::<Result<_, _>>()?, lora: None })
    }

    /// Trains only the adapters and the modules that they list.
    #[must_use]
    pub fn with_lora(self, lora: Option<Lora>) -> Self {
        Tuning { lora, ..self }
    }

    /// The adapters, if any.
    #[must_use]
    pub fn lora(&self) -> Option<&Lora> {
        self.lora.as_ref()
    }

    /// Returns whether the parameter `name` is trained.
    #[must_use]
    pub fn trains(&self, name: &str) -> bool {
        let is_frozen = self.lora.as_ref().is_some_and(|lora| !lora.trains(name));
        !is_frozen && !self.frozen.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns whether all parameters are trained.
    #[must_use]
    pub fn trains_all(&self) -> bool {
        self.frozen.is_empty() && self.lora.is_none()
    }

    /// Checks that every glob matches one of `names`, the names of all parameters; that every adapter target
    /// matches one of `adapters`, the adapters' matrices; and that at least one parameter is trained.
    ///
    /// # Errors
    /// The key, and a description of the problem.
    pub fn check<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
        adapters: &[FolderTensor],
    ) -> Result<(), (&'static str, String)> {
        const FREEZE: &str = "train.freeze";
        if let Some(lora) = &self.lora {
            lora.check(adapters)?;
            lora.saved.check(names.clone()).map_err(|reason| ("lora.train_also", reason))?;
        }
        let idle = |pattern: &&Pattern| !names.clone().any(|name| pattern.matches(name));
        if let Some(pattern) = self.frozen.iter().find(idle) {
            let text = pattern.as_str();
            let near = keys::nearest(&text.replace(['*', '?'], ""), names.clone());
            let hint = near.or(names.clone().next()).unwrap_or("nothing");
            return Err((FREEZE, format!("\"{text}\" matches no parameter, such as {hint}")));
        }
        match names.clone().any(|name| self.trains(name)) {
            true => Ok(()),
            false => Err((FREEZE, "every parameter is frozen, and nothing is left to train".to_owned())),
        }
    }
}
