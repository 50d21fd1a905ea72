//! Searches for configurations that fit a device, the fastest first: grids, schedules, ZeRO stages,
//! recomputation and micro-batch sizes, with the same number of samples in a step.

mod larger;
mod layout;
mod nearest;
mod proposal;
mod proposals;
mod shards;
mod trades;
mod tried;

use std::collections::BTreeMap;

use collective::Axis;
use config::{Memory, Optim, RunConfig};
use device::{Description, Kind};
use worker::{Placement, Setup};

use crate::error::{PlanError, Result};
use crate::fit::Fit;
use crate::host::RankForm;
use crate::imitated::PlanDevice;
use crate::overhead::{DeviceRanks, OverheadPart};
use crate::resolve::Resolved;
use crate::roles::{count_within, limited_to, plan_within, refused_or_too_long};
use crate::screening::{Screen, TimedLayers};
use crate::step_time::StepTime;
use crate::target::PlanOptions;
use crate::timed_step::assumptions;
pub use larger::LargerBatch;
use layout::Layout;
pub use nearest::Miss;
pub use proposal::Proposal;
pub use proposals::Proposals;
pub use trades::{Trade, Trades};

const PROPOSALS: usize = 12;

/// Options of a search for configurations that fit.
#[derive(Clone, Copy, Debug)]
pub struct FitOptions {
    /// Number of ranks.
    pub ranks: usize,
    /// Whether proposals list all axes and lanes, including those that equal the configuration.
    pub names_grid: bool,
    /// Maximum number of allocations of a rank in a plan, if below the default; candidates that need more are
    /// left out.
    pub most_allocations: u64,
}

/// Progress of a search.
#[derive(Clone, Copy, Debug)]
pub enum FitProgress<'a> {
    /// Another layout has been screened.
    Screened {
        /// Number of layouts screened so far.
        done: usize,
        /// Number of all layouts.
        total: usize,
    },
    /// A proposal that fits was found.
    Fits(&'a Proposal),
}

/// A layout that the configuration accepts.
struct Candidate {
    layout: Layout,
    /// Keys that configure this layout.
    sets: Vec<String>,
    /// Estimated seconds of a step from screening, which determine the order of planning.
    screened: f64,
}

/// Result of planning a candidate.
enum Outcome {
    Fits(Box<Proposal>),
    TooLarge,
    /// The candidate cannot be planned, for this reason.
    Unplanned(PlanError),
}

/// Settings shared by all candidates of a search.
struct Search {
    /// The user's configuration, and facts read from its data.
    data: Resolved,
    config: RunConfig,
    /// Keys that change the user's configuration into this one; all candidates include them.
    base: Vec<String>,
    device: PlanDevice,
    on_device: DeviceRanks,
    description: Description,
    fit: FitOptions,
}

/// Searches for configurations of `fit.ranks` ranks that have the samples of `config` in a step. Candidates
/// are planned in the order of their screening until enough fit; those are sorted by the times that the clock
/// predicts. `on_progress` is called for each screened layout and each proposal that fits. If nothing fits,
/// optimizer state is offloaded too, and then weights.
///
/// # Errors
/// The configuration is invalid, no grid of this many ranks exists, or no candidate can be planned.
pub fn propose(
    config: RunConfig,
    options: &PlanOptions,
    fit: FitOptions,
    on_progress: &mut dyn FnMut(FitProgress<'_>),
) -> Result<Proposals> {
    let ranks = fit.ranks;
    let on_device = DeviceRanks::of_world(&config, ranks);
    let device = options.target.device(options.capacity, on_device)?;
    let own_capacity = options.target.device(None, on_device)?.total_bytes;
    let description = device.description(on_device);
    let data = Resolved::new(config, &description)?;
    let mut search =
        Search { config: data.config.clone(), data, base: Vec::new(), device, on_device, description, fit };
    let candidates = search.candidates(on_progress)?;
    let mut proposals = Proposals {
        list: Vec::new(),
        nearest: None,
        trades: Trades::default(),
        larger: None,
        planned: 0,
        unplanned: 0,
        reason: None,
        candidates: candidates.len(),
        device_model: search.device.model.clone(),
        capacity: search.device.total_bytes,
        own_capacity,
        ranks,
        samples: search.config.train.global_batch_size,
        assumed: Vec::new(),
    };
    let mut refusal = search.run(&candidates, &mut proposals, on_progress)?;
    for key in [Optim::offload, Memory::offload_weights] {
        if !proposals.list.is_empty() || !search.offload(key) {
            continue;
        }
        let candidates = search.candidates(on_progress)?;
        proposals.candidates += candidates.len();
        refusal = search.run(&candidates, &mut proposals, on_progress)?;
    }
    proposals.larger = search.larger(&proposals.list)?;
    if let Some(first) = proposals.list.first() {
        let config = search.config.with(&first.sets)?;
        proposals.assumed = assumptions(&config, &search.device)?;
    }
    let first = proposals.list.first().map(|first| &first.sets);
    if let Some(sets) = first.or(proposals.nearest.as_ref().map(|nearest| &nearest.sets)) {
        // Keys common to all candidates are in the search's configuration.
        proposals.trades = search.trades(sets);
    }
    match refusal {
        Some(error) if proposals.list.is_empty() && proposals.nearest.is_none() => Err(error),
        _ => Ok(proposals),
    }
}

impl Search {
    /// Sets a key that offloads state or weights in all further candidates. Returns false if this changes
    /// nothing, is refused, or frees nothing because the device is the CPU.
    fn offload(&mut self, key: &str) -> bool {
        let offloaded = |config: &RunConfig| (config.optim.offload, config.memory.offload_weights);
        let set = format!("{key}=true");
        let changed = self.config.with(std::slice::from_ref(&set));
        let differs = |config: &RunConfig| offloaded(config) != offloaded(&self.config);
        match changed {
            Ok(config) if self.description.kind == Kind::Cuda && differs(&config) => {
                self.config = config;
                self.base.push(set);
                true
            }
            _ => false,
        }
    }

    /// Returns the layouts that the configuration accepts, sorted by screened time. Of layouts that differ
    /// only in the size of sharding groups, the smallest group comes first: it needs no less memory and sends
    /// less between hosts.
    fn candidates(&self, on_progress: &mut dyn FnMut(FitProgress<'_>)) -> Result<Vec<Candidate>> {
        let config = &self.config;
        let screen = Screen::for_device(&self.device, self.on_device)?;
        let mut timed: BTreeMap<[usize; 3], TimedLayers> = BTreeMap::new();
        let candidate = |layout: Layout| {
            // A refused configuration is not a candidate.
            let sets = [&self.base[..], &layout.sets(config, self.fit.names_grid)].concat();
            let sets = config.with_profile_of(sets).ok()?;
            let changed = config.with(&sets).ok()?;
            let size = |axis| layout.grid.size(axis);
            let shapes = [layout.micro_batch, size(Axis::Tensor), size(Axis::Context)];
            if !timed.contains_key(&shapes) {
                let layers = screen.layers(&changed, timed.values().next()).ok()?;
                timed.insert(shapes, layers);
            }
            let screened = screen.seconds(&changed, timed.get(&shapes)?).ok()?;
            Some(Candidate { layout, sets, screened })
        };
        let all = Layout::all(config, self.fit.ranks, self.device.gpus_per_host());
        let total = all.len();
        let mut candidate = candidate;
        let screened = |(done, layout)| {
            on_progress(FitProgress::Screened { done, total });
            candidate(layout)
        };
        let mut all: Vec<_> = all.into_iter().enumerate().filter_map(screened).collect();
        if all.is_empty() {
            let ranks = self.fit.ranks;
            let samples = config.train.global_batch_size;
            return Err(PlanError::Refused(format!(
                "--fit: no grid of {ranks} ranks divides the {samples} samples of a step and \
                 the model's layers"
            )));
        }
        all.sort_by(|a, b| a.screened.total_cmp(&b.screened));
        let first_alike = |one: &Candidate| {
            all.iter().position(|other: &Candidate| other.layout.has_groups_of_another_size(&one.layout))
        };
        let order: Vec<_> = all.iter().map(|one| (first_alike(one), one.layout.shards.owners)).collect();
        let mut all: Vec<_> = order.into_iter().zip(all).collect();
        all.sort_by_key(|(order, _)| *order);
        Ok(all.into_iter().map(|(_, candidate)| candidate).collect())
    }

    fn overhead(&self) -> Vec<OverheadPart> {
        self.device.overhead.parts(self.on_device)
    }

    fn setup(&self, sets: &[String]) -> Result<Setup> {
        let placement = Placement::Meta(self.description.clone());
        let setup = self.data.setup_of(self.config.with(sets)?, placement)?;
        Ok(limited_to(setup, self.fit.most_allocations))
    }

    /// Plans a candidate until a rank does not fit.
    ///
    /// # Errors
    /// Planning fails for a reason other than refusing the candidate.
    fn plan(&self, candidate: &Candidate) -> Result<Outcome> {
        match self.proposal(&candidate.sets, candidate.layout) {
            Ok(Some(proposal)) => Ok(Outcome::Fits(Box::new(proposal))),
            Ok(None) => Ok(Outcome::TooLarge),
            Err(error) if error.is_out_of_memory() => Ok(Outcome::TooLarge),
            Err(error) if error.exit_status() == 2 => Ok(Outcome::Unplanned(error)),
            Err(error) => Err(error),
        }
    }

    /// Plans a configuration and predicts its time; `None` if it does not fit.
    fn proposal(&self, sets: &[String], layout: Layout) -> Result<Option<Proposal>> {
        let setup = self.setup(sets)?;
        // Resident bytes on the CPU are computed from traces.
        let is_host = self.description.kind == Kind::Cpu;
        let plans = if is_host { plan_within(&setup)? } else { count_within(&setup)? };
        let fit = Fit::from_plans(&setup, &plans, self.overhead(), RankForm::Threads);
        if !fit.fits {
            return Ok(None);
        }
        let sent = plans.roles().iter().map(|plan| plan.step_traffic.total().bytes_sent).max().unwrap_or(0);
        let time = StepTime::predict(&setup, &self.device)
            .map_err(|error| refused_or_too_long(&setup, plans.roles().len(), error))?;
        let needs = fit.needs;
        let available = fit.available();
        let sets = sets.to_vec();
        Ok(Some(Proposal { sets, layout, time, needs, available, sent }))
    }
}
