//! Modules that are fully trained in addition to adapters, like PEFT's `modules_to_save`.

use std::collections::BTreeSet;

use system::quoted::shortened;

use crate::hugging_face::{FolderTensor, HuggingFaceModel};
use crate::targets::Target;

/// Modules without adapters whose parameters are trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SavedModules {
    targets: Vec<Target>,
    /// Tensors of these modules in the model's folder.
    tensors: Vec<FolderTensor>,
    /// Names of the parameters that folders store.
    stored: BTreeSet<String>,
}

impl SavedModules {
    /// Finds the modules named by `texts` in `model`. Without a model, modules are named like parameters.
    ///
    /// # Errors
    /// Modules are tied, or only some of the modules in one parameter are named; the error is a sentence.
    pub(crate) fn new(texts: &[String], model: Option<&HuggingFaceModel>) -> Result<Self, String> {
        let targets = texts.iter().map(|text| Target::new(text)).collect();
        let mut saved = SavedModules { targets, ..Self::default() };
        let Some(model) = model.filter(|_| !texts.is_empty()) else { return Ok(saved) };
        saved.stored = model.tensors.iter().map(|tensor| tensor.parameter.clone()).collect();
        let is_own = |tensor: &&FolderTensor| saved.covers_tensor(&tensor.name);
        let (own, others): (Vec<_>, Vec<_>) = model.tensors.iter().partition(is_own);
        let is_tied =
            |(copy, original): &&(String, &str)| saved.covers_tensor(copy) || saved.covers_tensor(original);
        if let Some((copy, original)) = model.copies.iter().find(is_tied) {
            return Err(format!("{copy} and {original} are tied in this model, and PEFT saves them apart"));
        }
        for tensor in &own {
            if let Some(other) = others.iter().find(|other| other.parameter == tensor.parameter) {
                let names = [&tensor.name, &other.name].map(|name| module_of(name));
                return Err(format!(
                    "{} and {} are one matrix here: name both or neither",
                    names[0], names[1]
                ));
            }
        }
        saved.tensors = own.into_iter().cloned().collect();
        Ok(saved)
    }

    /// Returns whether a module, or one that contains it, is fully trained.
    pub(crate) fn covers(&self, module: &str) -> bool {
        self.targets.iter().any(|target| names(target, module))
    }

    fn covers_tensor(&self, tensor: &str) -> bool {
        self.covers(module_of(tensor))
    }

    /// Returns whether a parameter belongs to a module that is fully trained.
    pub(crate) fn trains(&self, parameter: &str) -> bool {
        match self.stored.contains(parameter) {
            true => self.tensors.iter().any(|tensor| tensor.parameter == parameter),
            false => self.covers_tensor(parameter),
        }
    }

    /// Tensors of these modules in the model's folder.
    pub(crate) fn tensors(&self) -> &[FolderTensor] {
        &self.tensors
    }

    /// Names of these modules, each once.
    pub(crate) fn modules(&self) -> BTreeSet<&str> {
        self.tensors.iter().map(|tensor| module_of(&tensor.name)).collect()
    }

    /// Checks that every name matches a module of the model with these `parameters`.
    ///
    /// # Errors
    /// A description of the problem.
    pub(crate) fn check<'a>(&self, parameters: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
        let is_named = |target: &Target| {
            let is_own = |tensor: &str| names(target, module_of(tensor));
            self.tensors.iter().any(|tensor| is_own(&tensor.name)) || parameters.clone().any(is_own)
        };
        match self.targets.iter().find(|target| !is_named(target)) {
            None => Ok(()),
            Some(target) => Err(target
                .mistake()
                .unwrap_or_else(|| format!("\"{}\" names no module of the model", shortened(target.text())))),
        }
    }
}

/// Returns whether a target matches a module, or one that contains it.
fn names(target: &Target, module: &str) -> bool {
    let ends = module.match_indices('.').map(|(end, _)| end).chain([module.len()]);
    ends.into_iter().any(|end| target.matches(&module[..end]))
}

/// Returns the name of a tensor's module.
fn module_of(tensor: &str) -> &str {
    tensor.rsplit_once('.').map_or(tensor, |(module, _)| module)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::SavedModules;
    use crate::hugging_face::{FolderTensor, HuggingFaceModel};

    fn model(copies: Vec<(&'static str, &'static str)>) -> HuggingFaceModel {
        let whole =
            |name: &str, parameter: &str| FolderTensor::whole(name.to_owned(), parameter.to_owned(), &[4, 4]);
        let tensors = vec![
            whole("m.embed.weight", "embed.weight"),
            whole("m.0.q_proj.weight", "0.qkv.weight"),
            FolderTensor { first_row: 4, ..whole("m.0.k_proj.weight", "0.qkv.weight") },
            whole("m.0.mlp.up.weight", "0.up.weight"),
            whole("m.0.mlp.up.bias", "0.up.bias"),
            whole("head.weight", "head.weight"),
        ];
        let tables = Vec::new();
        let ignored = Vec::new();
        HuggingFaceModel {
            config: Map::new(),
            prefix: "",
            tensors,
            variants: Vec::new(),
            copies: copies.into_iter().map(|(copy, of)| (copy.to_owned(), of)).collect(),
            tables,
            ignored,
            is_part: false,
            unused: Vec::new(),
            unused_modules: Vec::new(),
            modules: Vec::new(),
            module_counts: &[],
        }
    }

    fn saved(names: &[&str], copies: Vec<(&'static str, &'static str)>) -> Result<SavedModules, String> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        SavedModules::new(&names, Some(&model(copies)))
    }

    #[test]
    fn parameters_of_named_modules_are_trained() {
        let parameters = ["embed.weight", "0.qkv.weight", "0.up.weight", "0.up.bias", "head.weight"];
        for (names, expected, modules) in [
            (&["embed", "head"][..], &[0, 4][..], &["head", "m.embed"][..]),
            (&["q_proj", "k_proj"], &[1], &["m.0.k_proj", "m.0.q_proj"]),
            (&["mlp"], &[2, 3], &["m.0.mlp.up"]),
            (&["*up"], &[2, 3], &["m.0.mlp.up"]),
            (&["m"], &[0, 1, 2, 3], &["m.0.k_proj", "m.0.mlp.up", "m.0.q_proj", "m.embed"]),
            (&[], &[], &[]),
        ] {
            let saved = saved(names, Vec::new()).unwrap();
            let trained = |index: &usize| saved.trains(parameters[*index]);
            assert_eq!((0..5).filter(trained).collect::<Vec<_>>(), expected, "{names:?}");
            assert!(saved.modules().into_iter().eq(modules.iter().copied()), "{names:?}");
            saved.check(parameters.into_iter()).unwrap();
        }
        let unknown = saved(&["embd"], Vec::new()).unwrap().check(parameters.into_iter());
        assert_eq!(unknown.unwrap_err(), "\"embd\" names no module of the model");
    }

    #[test]
    fn parts_and_tied_modules_are_refused() {
        let tied = vec![("head.weight", "m.embed.weight")];
        for (names, copies, expected) in [
            (&["q_proj"], Vec::new(), "m.0.q_proj and m.0.k_proj are one matrix here: name both or neither"),
            (&["embed"], tied.clone(), "head.weight and m.embed.weight are tied in this model"),
            (&["head"], tied, "head.weight and m.embed.weight are tied in this model"),
        ] {
            let refused = saved(names, copies).unwrap_err();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
