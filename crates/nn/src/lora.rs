//! Low-rank adapters: which linear layers have one, and the names that PEFT gives them.

use std::collections::BTreeMap;
use std::ops::Range;

use device::DType;
use tensor::ops::block_codes::Alphabet;

use crate::error::NnError;
use crate::hugging_face::{FolderTensor, HuggingFaceModel};
use crate::lora_terms::{LoraScaling, Patterns, Term};
use crate::saved_modules::SavedModules;
use crate::targets::Target;

/// Maximum rank of an adapter.
const MOST_RANK: usize = 1 << 24;
/// Suffixes of the names of an adapter's matrices A and B.
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
    /// Rank, the number of rows of A and of columns of B, of modules that `ranks` does not match.
    pub(crate) r: usize,
    /// Numerator of `scale` for modules that `alphas` does not match.
    pub(crate) alpha: f64,
    /// Formula of `scale`.
    pub(crate) scaling: LoraScaling,
    /// Ranks of modules that differ from `r`.
    ranks: Patterns<usize>,
    /// Numerators of modules that differ from `alpha`.
    alphas: Patterns<f64>,
    /// Probability with which elements of the adapter's input are dropped.
    pub dropout: f64,
    /// Patterns of the modules that get an adapter.
    targets: Vec<Target>,
    /// Whether some targets may match no module, as long as one matches.
    allows_unmatched: bool,
    /// Modules whose own weights are trained; they get no adapter.
    pub(crate) saved: SavedModules,
    /// Code in which the model's frozen matrices are stored; `None` if they are values.
    pub base: Option<Alphabet>,
    /// Type of the model's frozen matrices; `None` if it is the type of other weights.
    pub(crate) base_type: Option<DType>,
    /// Modules of each weight, by the weight's name.
    modules: BTreeMap<String, Vec<Module>>,
}

impl Lora {
    /// Creates adapters for the modules that match `targets`. `tensors` are the tensors of the model's
    /// folder; without them, modules are named like the layers.
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

    /// Returns the same adapters, with `scale` computed by `scaling`.
    #[must_use]
    pub fn with_scaling(self, scaling: LoraScaling) -> Self {
        Lora { scaling, ..self }
    }

    /// Returns the same adapters with other ranks for some modules, listed as texts such as `q_proj=8`.
    ///
    /// # Errors
    /// A message, if a text has another form.
    pub fn with_rank_pattern(self, texts: &[String]) -> Result<Self, String> {
        let read = |text: &str| text.parse().ok().filter(|r| (1..=MOST_RANK).contains(r));
        Ok(Lora { ranks: Patterns::parse(texts, "a rank", read)?, ..self })
    }

    /// Returns the same adapters with other numerators of `scale` for some modules, listed as texts such as
    /// `q_proj=16`.
    ///
    /// # Errors
    /// A message, if a text has another form.
    pub fn with_alpha_pattern(self, texts: &[String]) -> Result<Self, String> {
        let alpha = |text: &str| text.parse().ok().filter(|alpha: &f64| alpha.is_finite() && *alpha >= 0.0);
        Ok(Lora { alphas: Patterns::parse(texts, "an alpha", alpha)?, ..self })
    }

    /// Returns the same adapters, except that the modules `names` of `model` are trained themselves and get
    /// no adapter.
    ///
    /// # Errors
    /// A message, if a module cannot be saved by itself.
    pub fn with_trained(self, names: &[String], model: Option<&HuggingFaceModel>) -> Result<Self, String> {
        Ok(Lora { saved: SavedModules::new(names, model)?, ..self })
    }

    /// Returns the same adapters. If `is_of_folder`, their matrices are read from a PEFT folder, and some
    /// targets may match no module: PEFT allows this, and the folder's tensors show which modules have
    /// adapters.
    #[must_use]
    pub fn of_folder(self, is_of_folder: bool) -> Self {
        Lora { allows_unmatched: is_of_folder, ..self }
    }

    /// Returns the same adapters for a model whose frozen matrices are stored in the codes `base`.
    #[must_use]
    pub fn beside(self, base: Option<Alphabet>) -> Self {
        Lora { base, ..self }
    }

    /// Stores the model's frozen matrices as values of `dtype`; with `None`, in the type of other weights.
    #[must_use]
    pub fn beside_values(self, dtype: Option<DType>) -> Self {
        Lora { base_type: dtype, ..self }
    }

    /// Returns whether the parameter `name` is a matrix of an adapter.
    #[must_use]
    pub fn is_adapter(name: &str) -> bool {
        MATRICES.iter().any(|end| name.ends_with(end))
    }

    /// Returns whether the parameter `name` is the matrix B of an adapter.
    #[must_use]
    pub fn is_b(name: &str) -> bool {
        name.ends_with(MATRICES[1])
    }

    /// Returns whether the parameter `name` is trained.
    pub(crate) fn trains(&self, name: &str) -> bool {
        Self::is_adapter(name) || self.saved.trains(name)
    }

    /// Returns the rank of a module's adapter.
    pub(crate) fn rank_of(&self, module: &str) -> usize {
        self.ranks.value(module).unwrap_or(self.r)
    }

    /// Returns the numerator of `scale` for a module.
    pub(crate) fn alpha_of(&self, module: &str) -> f64 {
        self.alphas.value(module).unwrap_or(self.alpha)
    }

    /// Returns `scale` for a module.
    #[must_use]
    pub fn scale_of(&self, module: &str) -> f32 {
        self.scaling.factor(self.alpha_of(module), self.rank_of(module))
    }

    /// Returns the rank and scale that all of a layer's modules have.
    ///
    /// # Errors
    /// The modules have different ranks or scales.
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

    /// Returns the modules with an adapter in `layer`, which has `outputs` outputs.
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

    /// Returns the number of rows of each module in the weight `name`, which has `rows` rows.
    pub(crate) fn rows_of(&self, name: &str, rows: usize) -> Vec<usize> {
        let mut ranges: Vec<_> =
            self.modules.get(name).into_iter().flatten().map(|module| module.rows.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        let ends = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
        let is_divided = ranges.iter().map(|range| range.start).chain([rows]).eq(ends);
        if is_divided { ranges.iter().map(Range::len).collect() } else { vec![rows] }
    }

    /// Returns the modules with an adapter in a layer of experts, ordered by expert. The outputs of each
    /// expert consist of equal parts `names` of `rows` rows each. There are no modules if the folder stores
    /// all experts as one tensor.
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

    /// Returns the names of a layer's matrices A and B.
    pub(crate) fn names(layer: &str) -> [String; 2] {
        MATRICES.map(|end| format!("{layer}{end}"))
    }

    /// Returns the matrices of a layer's modules, as parts of the layer's matrices. The matrix A of a module
    /// is `[r, inputs]`.
    pub(crate) fn tensors(layer: &str, [r, inputs]: [usize; 2], modules: &[Module]) -> Vec<FolderTensor> {
        let [a, b] = Self::names(layer);
        let mut rows = 0;
        let matrices = |(index, module): (usize, &Module)| {
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
        modules.iter().enumerate().flat_map(matrices).collect()
    }

    /// Checks that every target matches a module with an adapter, or at least one target if the adapters are
    /// from a folder, and that the patterns of ranks and numerators match such modules. `tensors` are the
    /// matrices of all adapters.
    ///
    /// # Errors
    /// The configuration key at fault, and a message.
    pub(crate) fn check(&self, tensors: &[FolderTensor]) -> Result<(), (&'static str, String)> {
        let with_key = |key: &'static str| move |reason| (key, reason);
        let names = || tensors.iter().filter_map(|tensor| tensor.name.strip_suffix(MATRICES[0]));
        let layers = || self.modules.values().flatten().map(|module| last_part(&module.name));
        let is_found = |target: &Target| names().any(|name| target.matches(name));
        if self.allows_unmatched && self.targets.iter().any(is_found) {
            let mistake = self.targets.iter().find_map(Target::mistake);
            return mistake.map_or(Ok(()), Err).map_err(with_key("lora.targets"));
        }
        let is_named = |target: &Target| target.check(names(), layers());
        self.targets.iter().try_for_each(is_named).map_err(with_key("lora.targets"))?;
        self.ranks.check(names(), layers()).map_err(with_key("lora.rank_pattern"))?;
        self.alphas.check(names(), layers()).map_err(with_key("lora.alpha_pattern"))
    }
}

/// The adapters of a stage's linear layers.
#[derive(Debug, Default)]
pub struct Adapters {
    tensors: Vec<FolderTensor>,
}

impl Adapters {
    /// Adds the matrices of a layer, unless another shard of the layer has added them.
    pub(crate) fn extend(&mut self, tensors: Vec<FolderTensor>) {
        let is_known = |tensor: &FolderTensor| self.tensors.iter().any(|known| known.name == tensor.name);
        if !tensors.iter().any(is_known) {
            self.tensors.extend(tensors);
        }
    }

    /// Returns the matrices of all adapters, as tensors in PEFT's format.
    #[must_use]
    pub fn tensors(&self) -> &[FolderTensor] {
        &self.tensors
    }
}

/// Returns the last part of a dotted name.
fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
