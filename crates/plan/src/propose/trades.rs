//! Changes that save memory and alter results slightly, planned for the fastest proposal or the nearest
//! candidate.

use std::fmt;

use config::{LoraBase, LoraSection, OptimKind, Precision, RunConfig, StateType};
use device::DType;
use serde_json::json;
use telemetry::table::aligned;
use telemetry::units::{bytes, grouped};

use super::Search;
use crate::error::Result;
use crate::fit::Fit;
use crate::host::RankForm;
use crate::roles::plan_boundless;
use crate::step_time::StepTime;

/// Rank of the LoRA adapters proposed instead of training all weights.
const ADAPTER_RANK: usize = 16;
/// Key of the number of pieces in which the loss is computed.
const LOSS_KEY: &str = "model.loss_pieces";
/// Proposed number of pieces of the loss.
const LOSS_PIECES: usize = 8;
/// Sequence length in tokens from which a shorter one is proposed.
const LEAST_CONTEXT: usize = 512;

/// A planned change that alters results slightly.
#[derive(Clone, Debug)]
pub struct Trade {
    /// Description of the change.
    pub change: String,
    /// Keys of the change, in addition to the layout's.
    pub sets: Vec<String>,
    /// Peak reserved bytes of the rank with the most.
    pub needs: u64,
    /// Bytes available to each device's allocator.
    pub available: u64,
    /// Whether the run fits with the change.
    pub fits: bool,
    /// Predicted tokens per second, if the run fits and times are predicted.
    pub tokens_per_second: Option<f64>,
}

/// The changes planned for one layout.
#[derive(Clone, Debug, Default)]
pub struct Trades {
    /// Changes that can be planned; the last is all of them together.
    pub list: Vec<Trade>,
}

/// Returns the applicable changes, each with a description and its keys.
fn changes(config: &RunConfig, compute: DType) -> Vec<(String, Vec<String>)> {
    let mut changes = Vec::new();
    let mut add = |when: bool, change: &str, sets: &[String]| {
        if when {
            changes.push((change.to_owned(), sets.to_vec()));
        }
    };
    let tokens = config.model.examples().units();
    let half = tokens / 2;
    let shorter = config.model.with_context(half);
    add(tokens >= LEAST_CONTEXT, &format!("sequences of {} tokens", grouped(half as u64)), &shorter);
    let is_wide = config.precision.compute == DType::F32 && compute != DType::F32;
    let narrow = [format!("{}={compute}", Precision::compute)];
    add(is_wide, &format!("computing in {compute}"), &narrow);
    let half_gradients = config.precision.gradients == DType::F32 && !config.precision.is_autocast();
    let gradients = [format!("{}={}", Precision::gradients, config.precision.compute)];
    let is_half = config.precision.compute != DType::F32;
    add(is_half && half_gradients, &format!("gradients in {}", config.precision.compute), &gradients);
    let has_moments = config.optim.kind != OptimKind::Sgd || config.optim.momentum > 0.0;
    let is_f32 = config.optim.state == StateType::F32;
    let state = [format!("optim.state={}", StateType::EightBit.name())];
    add(has_moments && is_f32, "optimizer state in 8 bits", &state);
    let has_values = config.lora.rank > 0 && config.lora.base == LoraBase::Compute;
    let codes = [format!("{}={}", LoraSection::base, LoraBase::Nf4.name())];
    add(has_values, "frozen weights in 4 bits (NF4)", &codes);
    let pieces = [format!("{LOSS_KEY}={LOSS_PIECES}")];
    let is_whole = config.model.pairs().any(|(key, value)| key.path == LOSS_KEY && value.to_string() == "1");
    add(is_whole, &format!("the loss in {LOSS_PIECES} pieces"), &pieces);
    let adapters = [format!("{}={ADAPTER_RANK}", LoraSection::rank)];
    let is_tuned = config.lora.rank == 0 && config.model.weights().is_some();
    add(is_tuned, &format!("adapters of rank {ADAPTER_RANK} (LoRA) instead of all weights"), &adapters);
    changes
}

impl Search {
    /// Plans each change to the layout of `sets` alone, and all of them together.
    pub(super) fn trades(&self, sets: &[String]) -> Trades {
        let Ok(config) = self.config.with(sets) else { return Trades::default() };
        let compute = match self.description.compute_capability >= (8, 0) {
            true => DType::Bf16,
            false => config.precision.compute,
        };
        let mut all = changes(&config, compute);
        let together: Vec<String> = all.iter().flat_map(|(_, sets)| sets.clone()).collect();
        if all.len() > 1 {
            all.push(("all of these".to_owned(), together));
        }
        // Changes that the configuration refuses are left out.
        let planned = all.into_iter().filter_map(|(change, more)| self.trade(change, sets, more).ok());
        Trades { list: planned.collect() }
    }

    fn trade(&self, change: String, sets: &[String], more: Vec<String>) -> Result<Trade> {
        let both = self.config.with_profile_of([sets, &more[..]].concat())?;
        let setup = self.setup(&both)?;
        let fit = Fit::from_plans(&setup, &plan_boundless(&setup)?, self.overhead(), RankForm::Threads);
        let time = if fit.fits { StepTime::predict(&setup, &self.device).unwrap_or(None) } else { None };
        let tokens_per_second = time.map(|time| time.tokens_per_second);
        let available = fit.available();
        Ok(Trade { change, sets: more, needs: fit.needs, available, fits: fit.fits, tokens_per_second })
    }
}

impl Trade {
    fn row(&self) -> Vec<String> {
        let Trade { change, sets, needs, available, .. } = self;
        let room = match self.fits {
            true => format!("{} free", bytes(available.saturating_sub(*needs))),
            false => format!("lacks {}", bytes(needs.saturating_sub(*available))),
        };
        let speed = self.tokens_per_second.map_or_else(|| "-".to_owned(), |speed| grouped(speed as u64));
        let sets: Vec<_> = sets.iter().map(|set| format!("--set {set}")).collect();
        vec![change.clone(), sets.join(" "), bytes(*needs), room, speed]
    }
}

impl Trades {
    pub(super) fn to_json(&self) -> serde_json::Value {
        let to_json = |trade: &Trade| {
            json!({
                "change": trade.change,
                "set": trade.sets,
                "fits": trade.fits,
                "peak_reserved_bytes": trade.needs,
                "available_bytes": trade.available,
                "tokens_per_second": trade.tokens_per_second,
            })
        };
        self.list.iter().map(to_json).collect()
    }
}

impl fmt::Display for Trades {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = ["change", "keys", "peak reserved", "room", "tokens/s"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        rows.extend(self.list.iter().map(Trade::row));
        write!(f, "{}", aligned(&rows, 2, &[1]))
    }
}
