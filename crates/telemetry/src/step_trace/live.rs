//! Blocks alive at an event, by owner.

use std::collections::HashMap;

use memory::{Category, CategoryBytes};
use serde::{Deserialize, Serialize};

use super::{Owner, StepTrace, TraceEvent};
use crate::units::bytes;

/// Maximum number of owners listed in a sentence; further ones are counted.
const LISTED: usize = 3;

/// The live blocks of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The owner.
    #[serde(flatten)]
    pub owner: Owner,
    /// Number of blocks.
    pub blocks: u64,
    /// Requested bytes.
    pub requested: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Step of the oldest block's allocation, from 1; 0 before the first step.
    pub since: u64,
}

/// The live blocks of all owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveSet {
    /// One holding for each owner, largest first unless the function that returns the set documents another
    /// order.
    pub holdings: Vec<Holding>,
}

impl StepTrace {
    /// Returns the blocks alive after `events` events; if there are fewer, at the end.
    #[must_use]
    pub fn live_after(&self, events: usize) -> LiveSet {
        let blocks = self.blocks();
        let mut holdings: HashMap<usize, Holding> = HashMap::new();
        for number in self.numbers_after(events) {
            let (Some(block), Some(owner)) = (blocks.get(number), blocks.get(number).map(|b| b.owner)) else {
                continue;
            };
            let Some(described) = self.owners.get(owner) else { continue };
            let holding = holdings.entry(owner).or_insert_with(|| Holding {
                owner: described.clone(),
                blocks: 0,
                requested: 0,
                bytes: 0,
                since: block.since,
            });
            holding.blocks += 1;
            holding.requested += block.requested;
            holding.bytes += block.bytes;
            holding.since = holding.since.min(block.since);
        }
        LiveSet::sorted_by_bytes(holdings.into_values().collect())
    }

    /// Returns the numbers of the blocks alive after `events` events, in ascending order.
    pub(super) fn numbers_after(&self, events: usize) -> Vec<usize> {
        let mut alive: Vec<bool> = vec![true; self.held.len()];
        for event in self.events.iter().take(events) {
            match *event {
                TraceEvent::Allocate { .. } => alive.push(true),
                TraceEvent::Free { block } => {
                    if let Some(alive) = alive.get_mut(block) {
                        *alive = false;
                    }
                }
                TraceEvent::Driver { .. } => {}
            }
        }
        alive.iter().enumerate().filter(|(_, alive)| **alive).map(|(number, _)| number).collect()
    }
}

impl Owner {
    /// Formats the owner's category and module: `activations of `h.3.mlp``.
    #[must_use]
    pub fn in_words(&self) -> String {
        let plural = match self.category {
            Category::Parameter => "parameters",
            Category::Buffer => "buffers",
            Category::Gradient => "gradients",
            Category::OptimizerState => "optimizer state",
            Category::Activation => "activations",
            Category::ActivationGradient => "gradients of activations",
            Category::Workspace => "workspaces",
            Category::Communication => "communication buffers",
            Category::Input => "inputs",
            Category::Other => "other memory",
        };
        match self.module.as_str() {
            "" => plural.to_owned(),
            module => format!("{plural} of `{module}`"),
        }
    }
}

impl LiveSet {
    /// Creates a set with holdings sorted by descending bytes.
    pub(super) fn sorted_by_bytes(mut holdings: Vec<Holding>) -> Self {
        holdings.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.owner.cmp(&b.owner)));
        LiveSet { holdings }
    }

    /// Returns the bytes of all blocks by category.
    #[must_use]
    pub fn by_category(&self) -> CategoryBytes {
        let mut sums = CategoryBytes::default();
        for holding in &self.holdings {
            sums.0[holding.owner.category.index()] += holding.bytes;
        }
        sums
    }

    /// Returns the bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.holdings.iter().map(|holding| holding.bytes).sum()
    }

    /// Merges layers: replaces numbers in module paths by `*`.
    #[must_use]
    pub fn without_layers(&self) -> LiveSet {
        self.merged(|owner| Owner { module: without_numbers(&owner.module), ..owner.clone() })
    }

    /// Merges operators and streams: one holding for each category and module.
    #[must_use]
    pub fn by_owner(&self) -> LiveSet {
        self.merged(|owner| Owner { operator: String::new(), stream: 0, ..owner.clone() })
    }

    /// Lists the largest holdings: `activations of `h.3.mlp` (12.00 MiB) and 3 more`. Empty without holdings.
    #[must_use]
    pub fn in_words(&self) -> String {
        let all = self.by_owner().holdings;
        let parts: Vec<String> = all
            .iter()
            .take(LISTED)
            .map(|holding| format!("{} ({})", holding.owner.in_words(), bytes(holding.bytes)))
            .collect();
        match all.len().saturating_sub(LISTED) {
            0 => parts.join(", "),
            more => format!("{} and {more} more", parts.join(", ")),
        }
    }

    /// Merges layers, operators and streams: one holding for each category and module.
    #[must_use]
    pub fn by_module(&self) -> LiveSet {
        self.merged(|owner| Owner {
            category: owner.category,
            module: without_numbers(&owner.module),
            operator: String::new(),
            stream: 0,
        })
    }

    fn merged(&self, owner: impl Fn(&Owner) -> Owner) -> LiveSet {
        let mut merged: HashMap<Owner, Holding> = HashMap::new();
        for holding in &self.holdings {
            let owner = owner(&holding.owner);
            let new =
                || Holding { owner: owner.clone(), blocks: 0, requested: 0, bytes: 0, since: holding.since };
            let sum = merged.entry(owner.clone()).or_insert_with(new);
            sum.blocks += holding.blocks;
            sum.requested += holding.requested;
            sum.bytes += holding.bytes;
            sum.since = sum.since.min(holding.since);
        }
        LiveSet::sorted_by_bytes(merged.into_values().collect())
    }
}

/// Replaces numbers in a module path by `*`, so that all layers share their paths.
pub(crate) fn without_numbers(path: &str) -> String {
    let part = |part: &str| {
        if part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty() { "*" } else { part }.to_owned()
    };
    path.split('.').map(part).collect::<Vec<_>>().join(".")
}
