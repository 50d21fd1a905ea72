//! Low-rank adapters: which linear layers have one, and the names that PEFT gives them.

use std::collections::BTreeMap;
use std::ops::Range;

use tensor::ops::block_codes::Alphabet;

use crate::error::NnError;
use crate::hugging_face::{FolderTensor, HuggingFaceModel};
use crate::lora_terms::{LoraScaling, Patterns, Term};
use crate::saved_modules::SavedModules;
use crate::targets::Target;

/// The highest rank of a module.
const MOST_RANK: usize = 1 << 24;
/// The ends of the names of an adapter's matrices.
const MATRICES: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];

/// The module of a Hugging Face folder that corresponds to a linear layer, or to some of its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Module {
    /// The module's name in the folder.
    pub(crate) name: String,
    /// The module's rows in the layer's weight.
    pub(crate) rows: Range<usize>,
}

/// Low-rank adapters of a model's linear layers: `y = Wx + scale · B · A · dropout(x)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lora {
    /// Rows of A and columns of B, unless a module has others.
    pub(crate) r: usize,
    /// Numerator of the factor of the term, unless a module has another.
    pub(crate) alpha: f64,
    /// The factor of the term.
    pub(crate) scaling: LoraScaling,
    /// Ranks of single modules.
    ranks: Patterns<usize>,
    /// Numerators of single modules.
    alphas: Patterns<f64>,
    /// Probability of dropout of the input.
    pub dropout: f64,
    /// The modules with an adapter.
    targets: Vec<Target>,
    /// Whether targets may name no module beside others that do.
    allows_unmatched: bool,
    /// Modules that are trained wholly instead.
    pub(crate) saved: SavedModules,
    /// The codes of the model's frozen matrices; `None`: they are in the compute type.
    pub base: Option<Alphabet>,
    /// Modules by name of their weight.
    modules: BTreeMap<String, Vec<Module>>,
}

impl Lora {
    /// Adapters of the modules that `targets` names. `tensors` are those of the model's folder; without them
    /// modules have the names of layers.
    #[must_use]
    pub fn new(r: usize, alpha: f64, dropout: f64, targets: &[String], tensors: &[FolderTensor]) -> Self {
        let mut modules: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for tensor in tensors.iter().filter(|tensor| tensor.shape.len() == 2) {
            let Some(name) = tensor.name.strip_suffix(".weight") else { continue };
            let [rows, _] = tensor.rows_and_columns();
            let module = Module { name: name.to_owned(), rows: tensor.first_row..tensor.first_row + rows };
            modules.entry(tensor.parameter.clone()).or_default().push(module);
        }
        let targets = targets.iter().map(|target| Target::new(target)).collect();
        Lora { r, alpha, dropout, targets, modules, ..Self::default() }
    }

    /// Returns the same adapters with the factor of `scaling`.
    #[must_use]
    pub fn with_scaling(self, scaling: LoraScaling) -> Self {
        Lora { scaling, ..self }
    }

    /// Returns the same adapters with other ranks of some modules, as in `q_proj=8`.
    ///
    /// # Errors
    /// Another text, in a sentence.
    pub fn with_rank_pattern(self, texts: &[String]) -> Result<Self, String> {
        let read = |text: &str| text.parse().ok().filter(|r| (1..=MOST_RANK).contains(r));
        Ok(Lora { ranks: Patterns::parse(texts, "a rank", read)?, ..self })
    }

    /// Returns the same adapters with other numerators of the factor of some modules, as in `q_proj=16`.
    ///
    /// # Errors
    /// Another text, in a sentence.
    pub fn with_alpha_pattern(self, texts: &[String]) -> Result<Self, String> {
        let alpha = |text: &str| text.parse().ok().filter(|alpha: &f64| alpha.is_finite() && *alpha >= 0.0);
        Ok(Lora { alphas: Patterns::parse(texts, "an alpha", alpha)?, ..self })
    }

    /// Returns the same adapters beside modules of `model` that are trained wholly and have no adapters.
    ///
    /// # Errors
    /// Modules that cannot be saved alone, in a sentence.
    pub fn with_trained(self, names: &[String], model: Option<&HuggingFaceModel>) -> Result<Self, String> {
        Ok(Lora { saved: SavedModules::new(names, model)?, ..self })
    }

    /// Returns the same adapters, with matrices from a folder of PEFT if `is_of_folder`: targets may name no
    /// module beside others that do, as in PEFT, since the folder's tensors tell which modules have adapters.
    #[must_use]
    pub fn of_folder(self, is_of_folder: bool) -> Self {
        Lora { allows_unmatched: is_of_folder, ..self }
    }

    /// Returns the same adapters beside a model whose frozen matrices are in codes.
    #[must_use]
    pub fn beside(self, base: Option<Alphabet>) -> Self {
        Lora { base, ..self }
    }

    /// Returns whether a parameter of this name is a matrix of an adapter.
    #[must_use]
    pub fn is_adapter(name: &str) -> bool {
        MATRICES.iter().any(|end| name.ends_with(end))
    }

    /// Returns whether a parameter of this name is a matrix B of an adapter.
    #[must_use]
    pub fn is_b(name: &str) -> bool {
        name.ends_with(MATRICES[1])
    }

    /// Returns whether a parameter of this name is trained.
    pub(crate) fn trains(&self, name: &str) -> bool {
        Self::is_adapter(name) || self.saved.trains(name)
    }

    /// Returns the rank of a module's adapter.
    pub(crate) fn rank_of(&self, module: &str) -> usize {
        self.ranks.of(module).unwrap_or(self.r)
    }

    /// Returns the numerator of a module's factor.
    pub(crate) fn alpha_of(&self, module: &str) -> f64 {
        self.alphas.of(module).unwrap_or(self.alpha)
    }

    /// Returns the factor of a module's term.
    #[must_use]
    pub fn scale_of(&self, module: &str) -> f32 {
        self.scaling.factor(self.alpha_of(module), self.rank_of(module))
    }

    /// Returns the rank and the factor of the adapters of a layer's modules.
    ///
    /// # Errors
    /// Modules with different ones.
    pub(crate) fn term(&self, modules: &[Module]) -> Result<Term, NnError> {
        let term = |name: &str| Term { r: self.rank_of(name), scale: self.scale_of(name) };
        let first = modules.first().map_or("", |module| module.name.as_str());
        match modules.iter().find(|module| term(&module.name) != term(first)) {
            None => Ok(term(first)),
            Some(other) => Err(NnError::Sizes(format!(
                "lora.rank_pattern, lora.alpha_pattern: {first} and {} are rows of one matrix here, and need \
                 the same rank and alpha",
                other.name
            ))),
        }
    }

    /// The modules of a layer with this many outputs that have an adapter.
    pub(crate) fn modules_of(&self, layer: &str, outputs: usize) -> Vec<Module> {
        let own = || vec![Module { name: layer.to_owned(), rows: 0..outputs }];
        let modules = self.modules.get(&format!("{layer}.weight")).cloned();
        let mut modules = modules.unwrap_or_else(own);
        modules.retain(|module| self.adapts(&module.name));
        modules
    }

    fn adapts(&self, module: &str) -> bool {
        self.targets.iter().any(|target| target.matches(module)) && !self.saved.covers(module)
    }

    /// Rows of each module of the weight `name`, which has `rows` rows.
    pub(crate) fn rows_of(&self, name: &str, rows: usize) -> Vec<usize> {
        let mut ranges: Vec<_> =
            self.modules.get(name).into_iter().flatten().map(|module| module.rows.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        let ends = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
        let is_divided = ranges.iter().map(|range| range.start).chain([rows]).eq(ends);
        if is_divided { ranges.iter().map(Range::len).collect() } else { vec![rows] }
    }

    /// The modules with an adapter of a layer of experts, by expert: `names` are those of the equal parts of
    /// an expert's outputs, of `rows` rows each. A folder whose experts are one tensor has no such modules.
    pub(crate) fn modules_of_experts(
        &self,
        (layer, prefix): (&str, &str),
        experts: usize,
        (names, rows): (&[&str], usize),
    ) -> Vec<Module> {
        let own = |index: usize| {
            let name = format!("{prefix}.{}.{}", index / names.len(), names[index % names.len()]);
            Module { name, rows: index * rows..(index + 1) * rows }
        };
        let mut modules = match self.modules.get(&format!("{layer}.weight")) {
            Some(modules) => modules.clone(),
            None if self.modules.is_empty() => (0..experts * names.len()).map(own).collect(),
            None => Vec::new(),
        };
        modules.retain(|module| self.adapts(&module.name));
        modules
    }

    /// The names of a layer's matrices A and B.
    pub(crate) fn names(layer: &str) -> [String; 2] {
        MATRICES.map(|end| format!("{layer}{end}"))
    }

    /// The matrices of the modules of a layer as parts of the layer's matrices. A of one is `[r, inputs]`.
    pub(crate) fn tensors(layer: &str, [r, inputs]: [usize; 2], modules: &[Module]) -> Vec<FolderTensor> {
        let ([a, b], mut rows) = (Self::names(layer), 0);
        let of = |(index, module): (usize, &Module)| {
            let [a_name, b_name] = Self::names(&module.name);
            let whole = |name, parameter: &String, shape: [usize; 2]| {
                FolderTensor::whole(name, parameter.clone(), &shape)
            };
            let first_row = rows;
            rows += module.rows.len();
            [
                FolderTensor { first_row: index * r, ..whole(a_name, &a, [r, inputs]) },
                FolderTensor { first_row, ..whole(b_name, &b, [module.rows.len(), r]) },
            ]
        };
        modules.iter().enumerate().flat_map(of).collect()
    }

    /// Checks that every target, or one of those of a folder, is a module with an adapter, and that patterns
    /// name such modules. The matrices of all adapters are `tensors`.
    ///
    /// # Errors
    /// The key and a sentence.
    pub(crate) fn check(&self, tensors: &[FolderTensor]) -> Result<(), (&'static str, String)> {
        let of = |key: &'static str| move |reason| (key, reason);
        let names = || tensors.iter().filter_map(|tensor| tensor.name.strip_suffix(MATRICES[0]));
        let layers = || self.modules.values().flatten().map(|module| last_part(&module.name));
        let is_found = |target: &Target| names().any(|name| target.matches(name));
        if self.allows_unmatched && self.targets.iter().any(is_found) {
            let mistake = self.targets.iter().find_map(Target::mistake);
            return mistake.map_or(Ok(()), Err).map_err(of("lora.targets"));
        }
        let is_named = |target: &Target| target.check(names(), layers());
        self.targets.iter().try_for_each(is_named).map_err(of("lora.targets"))?;
        self.ranks.check(names(), layers()).map_err(of("lora.rank_pattern"))?;
        self.alphas.check(names(), layers()).map_err(of("lora.alpha_pattern"))
    }
}

/// The adapters of a stage's linear layers.
#[derive(Debug, Default)]
pub struct Adapters {
    tensors: Vec<FolderTensor>,
}

impl Adapters {
    /// Adds the matrices of a layer, unless another shard of it has.
    pub(crate) fn extend(&mut self, tensors: Vec<FolderTensor>) {
        let is_known = |tensor: &FolderTensor| self.tensors.iter().any(|known| known.name == tensor.name);
        if !tensors.iter().any(is_known) {
            self.tensors.extend(tensors);
        }
    }

    /// The matrices of all adapters in PEFT's format.
    #[must_use]
    pub fn tensors(&self) -> &[FolderTensor] {
        &self.tensors
    }
}

/// The last part of a dotted name.
fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
