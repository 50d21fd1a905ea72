//! Tags: the category, module, operator and step that every request carries.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

system::names! {
    /// The purpose of a block.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[repr(u8)]
    pub enum Category {
        /// Weights in the compute dtype.
        Parameter = "parameter",
        /// Buffers of models: state that no optimizer updates.
        Buffer = "buffer",
        /// Gradients of parameters, their buckets and lane sums.
        Gradient = "gradient",
        /// Moments, momentum and master weights.
        OptimizerState = "optimizer_state",
        /// Results of the forward pass, saved for backward or passed on.
        Activation = "activation",
        /// Gradients of activations.
        ActivationGradient = "activation_gradient",
        /// Scratch memory of one operator or library.
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
    /// The index in [`Category::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A module path that was interned by [`Labels`]. `Label(0)` is the empty path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub u32);

/// The origin of a request. Small and `Copy`, because it travels with every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Purpose of the block.
    pub category: Category,
    /// Path of the module that requests, such as `blocks.3.mlp.up`.
    pub module: Label,
    /// Name of the operator that requests, such as `linear`; empty outside operators.
    pub operator: &'static str,
    /// The training step, counted from 1; 0 before the first.
    pub step: u32,
}

impl Tag {
    /// Returns a tag that sets the category only.
    #[must_use]
    pub fn of(category: Category) -> Tag {
        Tag { category, ..Tag::default() }
    }
}

/// Table of module paths: each path is stored once and referred to by a number.
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
    /// Returns the number of `path`, adding it if it is new.
    ///
    /// Returns the number of the empty path if the table is full (2³² − 1 paths).
    pub fn intern(&mut self, path: &str) -> Label {
        if let Some(&number) = self.numbers.get(path) {
            return Label(number);
        }
        let Ok(number) = u32::try_from(self.names.len()) else { return Label::default() };
        self.names.push(path.to_owned());
        self.numbers.insert(path.to_owned(), number);
        Label(number)
    }

    /// The path of a number; empty for a number that is not in the table.
    #[must_use]
    pub fn name(&self, label: Label) -> &str {
        self.names.get(label.0 as usize).map_or("", String::as_str)
    }

    /// All paths, indexed by their numbers.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// Block bytes by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryBytes(pub [u64; Category::ALL.len()]);

impl CategoryBytes {
    /// Bytes of one category.
    #[must_use]
    pub fn get(&self, category: Category) -> u64 {
        self.0[category.index()]
    }

    /// Bytes of all categories.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each category with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Category, u64)> + '_ {
        Category::ALL.into_iter().zip(self.0)
    }
}
