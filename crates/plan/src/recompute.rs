//! `memory.recompute = "auto"`: chooses the cheapest recomputation that fits, by planning instead of a
//! formula.
//!
//! The cheapest choice recomputes the fewest layers; among equals it has the most segments, because the last
//! operators of a segment are not recomputed. The choice replaces `"auto"` in the configuration, so all
//! ranks, the run's files and resumed runs use the same.

use std::sync::Arc;

use crate::error::{PlanError, Result};
use crate::partition;
use crate::roles::{Plans, count_within};
use config::{Memory, RecomputePolicy};
use telemetry::units::grouped;
use worker::Setup;

/// Number of planned steps for runs without a last step; memory has settled by then.
const STEPS: u64 = 4;

/// A choice: recompute the first `layers` layers of each stage, in `segments` segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    layers: usize,
    segments: usize,
}

/// Replaces `"auto"` recomputation in `setup` by the cheapest that fits; returns other setups unchanged.
///
/// # Errors
/// Planning fails, or nothing fits.
pub fn settle(setup: Setup) -> Result<Setup> {
    if setup.config.memory.recompute != RecomputePolicy::Auto {
        return Ok(setup);
    }
    let search = Search { setup: &setup, layers: layers_of_a_stage(&setup) };
    let fitting = match search.attempt(Choice { layers: 0, segments: 0 })? {
        Some(fitting) => Some(fitting),
        None => search.cheapest()?,
    };
    fitting.ok_or_else(|| search.refusal())
}

/// Like [`settle`], for a measurement without a last step.
pub fn settle_soon(mut setup: Setup) -> Result<Setup> {
    let mut short = setup.clone();
    Arc::make_mut(&mut short.config).train.steps = setup.first_step() + STEPS;
    let settled = settle(short)?;
    Arc::make_mut(&mut setup.config).memory = settled.config.memory.clone();
    Ok(Setup { blueprint: settled.blueprint, ..setup })
}

/// Encodes the choice for [`adopt`]; empty if recomputation is still `"auto"`.
pub fn encode(memory: &Memory) -> String {
    let Memory { recompute, recompute_layers, .. } = memory;
    match recompute {
        RecomputePolicy::Auto => String::new(),
        RecomputePolicy::None => format!("none {recompute_layers}"),
        RecomputePolicy::Block => format!("block {recompute_layers}"),
        RecomputePolicy::Segments(count) => format!("{count} {recompute_layers}"),
    }
}

/// Applies the choice that another rank has encoded.
pub fn adopt(setup: Setup, text: &str) -> Result<Setup> {
    match decode(text) {
        Some((recompute, layers)) => with(&setup, recompute, layers),
        None => Ok(setup),
    }
}

fn decode(text: &str) -> Option<(RecomputePolicy, usize)> {
    let (recompute, layers) = text.split_once(' ')?;
    let recompute = match recompute {
        "none" => RecomputePolicy::None,
        "block" => RecomputePolicy::Block,
        count => RecomputePolicy::Segments(count.parse().ok()?),
    };
    Some((recompute, layers.parse().ok()?))
}

/// Sets the recomputation keys. Recomputation changes costs, so layers are partitioned again.
fn with(setup: &Setup, recompute: RecomputePolicy, recompute_layers: usize) -> Result<Setup> {
    let mut setup = setup.clone();
    let memory = &mut Arc::make_mut(&mut setup.config).memory;
    (memory.recompute, memory.recompute_layers) = (recompute, recompute_layers);
    if setup.config.stages() > 1 {
        let config = &setup.config;
        let dataset = &setup.dataset;
        let description = setup.placement.description();
        let stages = partition::stages(config, dataset, &description)?;
        return Ok(setup.partitioned(stages)?);
    }
    Ok(setup)
}

fn layers_of_a_stage(setup: &Setup) -> usize {
    setup.blueprint.stages.iter().map(|stage| stage.layers.len()).max().unwrap_or(0)
}

impl Choice {
    /// Applies this choice to `setup`; `all` is the number of layers of the largest stage.
    fn apply(self, setup: &Setup, all: usize) -> Result<Setup> {
        let recompute = match self {
            Choice { segments: 0, .. } => RecomputePolicy::None,
            Choice { layers, segments } if layers == segments => RecomputePolicy::Block,
            Choice { segments, .. } => RecomputePolicy::Segments(segments),
        };
        with(setup, recompute, if self.layers >= all { 0 } else { self.layers })
    }
}

struct Search<'a> {
    setup: &'a Setup,
    /// Number of layers of the largest stage.
    layers: usize,
}

impl Search<'_> {
    /// Returns the setup and plans of a choice; `None` if it does not fit.
    fn plans(&self, choice: Choice) -> Result<Option<(Setup, Plans)>> {
        let setup = choice.apply(self.setup, self.layers)?;
        // The run is not compared with this plan, so counts suffice.
        match count_within(&setup) {
            Ok(plans) => Ok(Some((setup, plans))),
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn attempt(&self, choice: Choice) -> Result<Option<Setup>> {
        Ok(self.plans(choice)?.map(|(setup, _)| setup))
    }

    /// Returns the segment lengths to try, ascending: 1, 2, 3, 4, 6, 8, 12, 16, …
    fn lengths(&self) -> impl Iterator<Item = usize> + use<> {
        let layers = self.layers;
        let powers = (0..usize::BITS).map(|bit| 1_usize << bit).take_while(move |power| *power <= layers);
        let both = powers.flat_map(|power| [power, power + power / 2]);
        both.filter(move |length| *length <= layers)
            .scan(0, |last, length| {
                let new = length > *last;
                *last = length;
                Some(new.then_some(length))
            })
            .flatten()
    }

    /// Returns the choice with the fewest layers that fits, with the shortest segments among these. Only the
    /// search assumes that recomputing more layers needs no more memory; the result itself has been planned.
    fn cheapest(&self) -> Result<Option<Setup>> {
        let mut best: Option<(usize, Setup)> = None;
        for length in self.lengths() {
            let most = best.as_ref().map_or(self.layers, |(layers, _)| layers - 1);
            let first = |layers: usize| Choice { layers, segments: layers.div_ceil(length) };
            let Some(mut fitting) = self.attempt(first(most))? else { continue };
            let mut too_few = 0;
            let mut enough = most;
            while enough - too_few > 1 {
                let middle = too_few.midpoint(enough);
                match self.attempt(first(middle))? {
                    Some(better) => (enough, fitting) = (middle, better),
                    None => too_few = middle,
                }
            }
            best = Some((enough, fitting));
            if enough == 1 {
                break;
            }
        }
        Ok(best.map(|(_, fitting)| fitting))
    }

    /// Returns a refusal that states the least memory needed by any choice.
    fn refusal(&self) -> PlanError {
        let mut unlimited = self.setup.clone();
        unlimited.device.limit_bytes = None;
        let search = Search { setup: &unlimited, layers: self.layers };
        let all = |length: usize| Choice { layers: self.layers, segments: self.layers.div_ceil(length) };
        let needs = |length: usize| -> Option<(u64, usize, String)> {
            let (setup, plans) = search.plans(all(length)).ok()??;
            let most = plans.largest()?;
            Some((most.statistics.peak_reserved(), most.rank, in_words(&setup.config.memory)))
        };
        let least = self.lengths().filter_map(needs).min();
        let limit = match self.setup.device.limit_bytes {
            Some(limit) => {
                let index = self.setup.config.origins.find("memory.limit_bytes");
                format!("{index}: memory.limit_bytes = {} is too small", grouped(limit))
            }
            None => "the run does not fit on this device".to_owned(),
        };
        PlanError::Refused(match least {
            Some((bytes, rank, words)) => {
                format!(
                    "{limit} with any recomputation: with {words}, rank {rank} needs {} bytes",
                    grouped(bytes)
                )
            }
            None => format!("{limit} with any recomputation"),
        })
    }
}

/// Formats the recomputation keys.
pub fn in_words(memory: &Memory) -> String {
    let recompute = match memory.recompute {
        RecomputePolicy::None => "\"none\"".to_owned(),
        RecomputePolicy::Block => "\"block\"".to_owned(),
        RecomputePolicy::Segments(count) => count.to_string(),
        RecomputePolicy::Auto => "\"auto\"".to_owned(),
    };
    let layers = match memory.recompute_layers {
        0 => String::new(),
        layers => format!(" and memory.recompute_layers = {layers}"),
    };
    format!("memory.recompute = {recompute}{layers}")
}
