//! Finds the nearest configuration that fits, by planning candidates.

use std::time::{Duration, Instant};

use telemetry::units::{bytes, grouped};

use crate::error::{PlanError, Result};
use crate::fit::{Fit, Limit};
use crate::most_memory;
use crate::prepare::prepare_changed;
use crate::recompute;
use crate::roles::{Plans, plan_within};
use config::{LoraBase, LoraSection, Memory, Optim, Parallel, RecomputePolicy, RunConfig};
use worker::Setup;

/// Duration after which the search gives up.
const PATIENCE: Duration = Duration::from_secs(2);

/// The highest ZeRO stage.
const MOST_STAGE: u32 = 3;

/// Start of a refusal for lack of device memory.
pub(crate) const DOES_NOT_FIT: &str = "the run does not fit on this device: ";

/// Changed keys with which a run fits.
#[derive(Clone, Debug)]
pub struct Remedy {
    /// Keys to set, each as `section.key=value`.
    pub sets: Vec<String>,
    /// The run's memory with these keys.
    pub fit: Fit,
    /// Further changes that the keys do not show, such as the number of ranks or the global batch; may be
    /// empty.
    pub consequences: String,
}

/// Describes how `after` differs from `before` in ranks and global batch, preceded by a comma; empty if
/// equal.
pub(crate) fn consequences(before: &RunConfig, after: &RunConfig) -> String {
    let ranks = [before.world_size(), after.world_size()];
    let samples = [before.train.global_batch_size, after.train.global_batch_size];
    let unit = if after.model.examples().units() > 1 { "sequences" } else { "samples" };
    let changed = |preposition: &str, [before, after]: [usize; 2], unit: &str| {
        let [old, new] = [before, after].map(|number| grouped(number as u64));
        if before == after { String::new() } else { format!(", {preposition} {new} {unit} instead of {old}") }
    };
    changed("on", ranks, "ranks") + &changed("with", samples, &format!("{unit} a step"))
}

/// Returns the error for a run that does not fit: the figures, the largest causes, and the nearest
/// configuration that fits.
pub fn refusal(setup: &Setup, plans: &Plans, fit: &Fit) -> PlanError {
    let broken = fit.broken_limit();
    let text = match broken {
        Some(Limit { setting, bytes }) => {
            let key =
                if setup.device.limit_bytes.is_some() { "memory.limit_bytes" } else { "memory.allocator" };
            let index = setup.config.origins.find(key);
            let rank = fit.rank;
            let needs = grouped(fit.most);
            let allowed = grouped(bytes);
            format!("{index}: rank {rank} needs {needs} bytes; {setting} allows {allowed}")
        }
        None => format!("{DOES_NOT_FIT}{}", fit.figures()),
    };
    let causes = plans.largest().map(|plan| most_memory::in_words(setup, plan)).unwrap_or_default();
    let text = if causes.is_empty() { text } else { format!("{text}; most of it: {causes}") };
    let advice = match nearest(setup, fit) {
        Some(Remedy { sets, fit, consequences }) => {
            let sets: Vec<_> = sets.iter().map(|set| format!("--set {set}")).collect();
            // A limit applies to reserved bytes; a device's capacity applies to everything that it holds.
            let needs = if broken.is_some() { fit.most } else { fit.needs };
            format!("; {}{consequences} would need {} ({})", sets.join(" "), grouped(needs), bytes(needs))
        }
        None => String::new(),
    };
    PlanError::Refused(text + &advice)
}

/// Returns the first configuration that fits. Candidates are, in order: more sharded state, one ZeRO stage
/// after another, then lanes of one micro-batch; more and smaller micro-batches; recomputed activations;
/// several of these; adapters with frozen weights in 4 bits; offloaded state and weights, alone and with the
/// above. Last come twice, four and eight times as many pipeline stages, with the same number of ranks if
/// possible.
pub fn nearest(setup: &Setup, fit: &Fit) -> Option<Remedy> {
    let began = Instant::now();
    let candidates = candidates(&setup.config);
    let timely = candidates.into_iter().take_while(|_| began.elapsed() < PATIENCE);
    timely.into_iter().find_map(|sets| {
        let sets = setup.config.with_profile_of(sets).ok()?;
        let changed = changed(setup, &sets).ok()?;
        let plans = plan_within(&changed).ok()?;
        let fit = match changed.config.world_size() == setup.config.world_size() {
            true => Fit::from_plans(&changed, &plans, fit.overhead.clone(), fit.form).in_shared(
                &changed,
                &plans,
                fit.shared.clone(),
            ),
            // The host that the ranks would share is unknown.
            false if fit.shared.is_empty() => {
                Fit::from_plans(&changed, &plans, fit.overhead.clone(), fit.form)
            }
            false => return None,
        };
        let consequences = consequences(&setup.config, &changed.config);
        fit.fits.then_some(Remedy { sets, fit, consequences })
    })
}

/// Returns the setup with some keys changed.
pub fn changed(setup: &Setup, sets: &[String]) -> Result<Setup> {
    let changed = prepare_changed(setup, sets)?;
    recompute::settle(changed.with_hook(setup.hook.clone())?)
}

/// Returns the keys of each way to shard more state over data-parallel ranks: higher ZeRO stages, then stage
/// 3 over all ranks with lanes of one micro-batch, which need no whole gradients.
fn sharded(config: &RunConfig) -> Vec<Vec<String>> {
    let parallel = &config.parallel;
    let micro_batches = config.train.micro_batches();
    if parallel.data == 1 {
        return Vec::new();
    }
    let stage = |stage: u32| format!("{}={stage}", Parallel::zero_stage);
    let mut ways: Vec<_> = (parallel.zero_stage + 1..=MOST_STAGE).map(|higher| vec![stage(higher)]).collect();
    let mut all: Vec<String> = Vec::new();
    all.extend((parallel.zero_stage < MOST_STAGE).then(|| stage(MOST_STAGE)));
    let rest = [
        (parallel.shard > 0).then(|| format!("{}=0", Parallel::shard)),
        (parallel.lanes < micro_batches).then(|| format!("{}={micro_batches}", Parallel::lanes)),
    ];
    let rest: Vec<_> = rest.into_iter().flatten().collect();
    if !rest.is_empty() {
        all.extend(rest);
        ways.push(all);
    }
    ways
}

fn candidates(config: &RunConfig) -> Vec<Vec<String>> {
    let one = |when: bool, set: &str| -> Vec<Vec<String>> {
        let with = when.then(|| vec![set.to_owned()]);
        with.into_iter().collect()
    };
    let shard = sharded(config);
    let again = one(config.memory.recompute == RecomputePolicy::None, "memory.recompute=block");
    let size = config.train.micro_batch_size;
    let halves = (1..usize::BITS).map(|power| 1_usize << power).take_while(|by| size.is_multiple_of(*by));
    let smaller: Vec<_> = halves.map(|by| vec![format!("train.micro_batch_size={}", size / by)]).collect();
    let both = |first: &[Vec<String>], second: &[Vec<String>]| -> Vec<Vec<String>> {
        first.iter().flat_map(|a| second.iter().map(move |b| [&a[..], b].concat())).collect()
    };
    let smallest: Vec<_> = smaller.last().cloned().into_iter().collect();
    let mut all = [&shard[..], &smaller, &again].concat();
    all.extend(both(&shard, &smaller));
    all.extend(both(&shard, &again));
    all.extend(both(&again, &smaller));
    all.extend(both(&shard, &both(&again, &smaller)));
    let has_values = config.lora.rank > 0 && config.lora.base == LoraBase::Compute;
    let codes = one(has_values, &format!("{}={}", LoraSection::base, LoraBase::Nf4.name()));
    all.extend_from_slice(&codes);
    all.extend(both(&again, &codes));
    all.extend(both(&both(&shard, &again), &codes));
    let state = one(!config.optim.offload, &format!("{}=true", Optim::offload));
    let weights = one(!config.memory.offload_weights, &format!("{}=true", Memory::offload_weights));
    let weights = if config.optim.offload { weights } else { both(&state, &weights) };
    let offload = [state, weights].concat();
    all.extend_from_slice(&offload);
    all.extend(both(&again, &offload));
    all.extend(both(&both(&shard, &again), &offload));
    all.extend(both(&both(&again, &smallest), &offload));
    let most: Vec<_> = shard.last().cloned().into_iter().collect();
    let everything: Vec<String> = [&most[..], &again, &smallest].concat().concat();
    let data = config.parallel.data;
    let pipeline = config.parallel.pipeline;
    let stages = |by: usize| format!("parallel.pipeline={}", pipeline * by);
    let divided = [2, 4, 8].into_iter().filter(|by| data.is_multiple_of(*by));
    let grids = divided.map(|by| vec![format!("parallel.data={}", data / by), stages(by)]);
    let grids = grids.chain([2, 4, 8].map(|by| vec![stages(by)]));
    // A single replica cannot shard its optimizer state.
    let shares = |grid: &Vec<String>| !grid.contains(&"parallel.data=1".to_owned());
    let without: Vec<String> = [&again[..], &smallest].concat().concat();
    all.extend(grids.map(|grid| [if shares(&grid) { &everything[..] } else { &without }, &grid].concat()));
    all
}
