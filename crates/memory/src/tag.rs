//! Tags of requests: category, module, operator and step.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

system::names! {
    /// Purpose of a block.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[repr(u8)]
    pub enum Category {
        /// Weights in the compute dtype.
        Parameter = "parameter",
        /// Buffers of models: state that no optimizer updates.
        Buffer = "buffer",
        /// Gradients of parameters, their buckets and lane sums.
        Gradient = "gradient",
        /// Optimizer states: moments, momentum and master weights.
        OptimizerState = "optimizer_state",
        /// Results of the forward pass, saved for backward or passed on.
        Activation = "activation",
        /// Gradients of activations.
        ActivationGradient = "activation_gradient",
        /// Scratch memory of one operator or library call.
        Workspace = "workspace",
        /// Buffers for messages between ranks.
        Communication = "communication",
        /// Batches from the loader.
        Input = "input",
        /// Memory without a stated purpose.
        #[default]
        Other = "other",
    }
}

impl Category {
    /// Returns the index in [`Category::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Number of a module path in [`Labels`]. `Label(0)` is the empty path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub u32);

/// Origin of a request. Small and `Copy`, because every request carries one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Purpose of the block.
    pub category: Category,
    /// Path of the requesting module, such as `blocks.3.mlp.up`.
    pub module: Label,
    /// Name of the requesting operator, such as `linear`; empty outside operators.
    pub operator: &'static str,
    /// Training step, counted from 1; 0 before the first step.
    pub step: u32,
}

impl Tag {
    /// Returns a tag with this category and nothing else set.
    #[must_use]
    pub fn with_category(category: Category) -> Tag {
        Tag { category, ..Tag::default() }
    }
}

/// Table of module paths. Each path is stored once and referred to by its number.
#[derive(Clone, Debug)]
pub struct Labels {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Default for Labels {
    fn default() -> Self {
        Labels { names: vec![String::new()], numbers: HashMap::from([(String::new(), 0)]) }
    }
}

impl Labels {
    /// Returns the number of `path`, adding it if it is new. If the table is full (2³² − 1 paths), returns
    /// the number of the empty path.
    pub fn intern(&mut self, path: &str) -> Label {
        if let Some(&number) = self.numbers.get(path) {
            return Label(number);
        }
        let Ok(number) = u32::try_from(self.names.len()) else { return Label::default() };
        self.names.push(path.to_owned());
        self.numbers.insert(path.to_owned(), number);
        Label(number)
    }

    /// Returns the path with this number; empty for a number that is not in the table.
    #[must_use]
    pub fn name(&self, label: Label) -> &str {
        self.names.get(label.0 as usize).map_or("", String::as_str)
    }

    /// Returns all paths, indexed by their numbers.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// Bytes of allocated blocks by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryBytes(pub [u64; Category::ALL.len()]);

impl CategoryBytes {
    /// Returns the bytes of one category.
    #[must_use]
    pub fn get(&self, category: Category) -> u64 {
        self.0[category.index()]
    }

    /// Returns the bytes of all categories.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns each category with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Category, u64)> + '_ {
        Category::ALL.into_iter().zip(self.0)
    }
}
