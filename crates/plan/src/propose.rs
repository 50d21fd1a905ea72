//! Configurations that fit a device, the fastest first: grids, schedules, ZeRO stages, recomputation and
//! micro-batch sizes, with the same number of samples in a step.

mod layout;
mod nearest;
mod proposal;
mod shards;
mod tried;

use config::RunConfig;
use device::Description;
use worker::build::{self, DataScope};
use worker::{Placement, Setup};

use crate::cost::{Cost, cost, equal_stages};
use crate::error::{PlanError, Result};
use crate::fit::Fit;
use crate::host::RankForm;
use crate::imitated::PlanDevice;
use crate::links::HOST;
use crate::overhead::{DeviceRanks, OverheadPart};
use crate::prepare::prepare_shapes;
use crate::rates::DeviceRates;
use crate::roles::{limited_to, plan_within};
use crate::step_time::StepTime;
use crate::target::PlanOptions;
use crate::work::Work;
use layout::Layout;
pub use nearest::Miss;
pub use proposal::{Proposal, Proposals};

/// Number of proposals.
const PROPOSALS: usize = 12;

/// The grids that are searched, and how they are named.
#[derive(Clone, Copy, Debug)]
pub struct FitOptions {
    /// Number of ranks.
    pub ranks: usize,
    /// Whether proposals name the sizes of all axes and the lanes, also those of the configuration.
    pub names_grid: bool,
    /// Most allocations of a rank in a plan, where it is less than a plan may make; a candidate that needs
    /// more is left out.
    pub most_allocations: u64,
}

/// A layout that the configuration accepts.
struct Candidate {
    layout: Layout,
    /// Keys that give the configuration this layout.
    sets: Vec<String>,
    /// Predicted time of a step with equal stages.
    cost: Cost,
}

/// The result of planning a candidate.
enum Outcome {
    Fits(Box<Proposal>),
    TooLarge,
    /// The candidate cannot be planned, for this reason.
    Unplanned(PlanError),
}

/// The settings that all candidates share.
struct Search {
    config: RunConfig,
    device: PlanDevice,
    on_device: DeviceRanks,
    description: Description,
    fit: FitOptions,
    rates: DeviceRates,
    work: Work,
}

/// Plans configurations of `fit.ranks` ranks that have the samples of `config` in a step, in the order of
/// their costs, until enough of them fit, and orders those by the times that the clock predicts. `on_result`
/// is called for each that fits.
///
/// # Errors
/// Errors of the configuration; a number of ranks for which no grid exists; candidates none of which can be
/// planned.
pub fn propose(
    config: RunConfig,
    options: &PlanOptions,
    fit: FitOptions,
    on_result: &mut dyn FnMut(&Proposal),
) -> Result<Proposals> {
    let ranks = fit.ranks;
    let on_device = DeviceRanks::of_world(&config, ranks);
    let device = options.target.device(options.capacity, on_device)?;
    let own_capacity = options.target.device(None, on_device)?.total_bytes;
    let (rates, mut assumed) = device.rates_or_shipped()?;
    assumed.retain(|key| ranks > HOST || key != "network_bytes");
    let description = device.description(on_device);
    let work = Work::count(&config, &build::dataset(&config, DataScope::Shapes)?, &description)?;
    let search = Search { config, device, on_device, description, fit, rates, work };
    let candidates = search.candidates()?;
    let mut proposals = Proposals {
        list: Vec::new(),
        nearest: None,
        planned: 0,
        unplanned: 0,
        reason: None,
        candidates: candidates.len(),
        device_model: search.device.model.clone(),
        capacity: search.device.total_bytes,
        own_capacity,
        ranks,
        samples: search.config.train.global_batch_size,
        tokens: build::tokens_per_step(&search.config),
        assumed,
    };
    let refusal = search.run(&candidates, &mut proposals, on_result)?;
    match refusal {
        Some(error) if proposals.list.is_empty() && proposals.nearest.is_none() => Err(error),
        _ => Ok(proposals),
    }
}

impl Search {
    /// Returns the layouts that the configuration accepts, the fastest first. Of those that differ only in
    /// the size of the groups that share state, the smallest comes first: the cost model has one link between
    /// all ranks, and groups use those of a host.
    ///
    /// # Errors
    /// No such layout.
    fn candidates(&self) -> Result<Vec<Candidate>> {
        let config = &self.config;
        let candidate = |layout: Layout| {
            // A refused configuration is no candidate.
            let sets = config.with_profile_of(layout.sets(config, self.fit.names_grid)).ok()?;
            let changed = config.with(&sets).ok()?;
            let cost = cost(&changed, &self.work, &self.rates, &equal_stages(&changed)).ok()?;
            Some(Candidate { layout, sets, cost })
        };
        let mut all: Vec<_> = Layout::all(config, self.fit.ranks).into_iter().filter_map(candidate).collect();
        if all.is_empty() {
            let (ranks, samples) = (self.fit.ranks, config.train.global_batch_size);
            return Err(PlanError::Refused(format!(
                "--fit: no grid of {ranks} ranks divides the {samples} samples of a step and \
                 the model's layers"
            )));
        }
        all.sort_by(|a, b| a.cost.seconds().total_cmp(&b.cost.seconds()));
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

    fn setup(&self, candidate: &Candidate) -> Result<Setup> {
        let placement = Placement::Meta(self.description.clone());
        let setup = prepare_shapes(self.config.with(&candidate.sets)?, placement)?;
        Ok(limited_to(setup, self.fit.most_allocations))
    }

    /// Plans a candidate until a rank does not fit.
    ///
    /// # Errors
    /// Errors that are no refusal of the candidate.
    fn plan(&self, candidate: &Candidate) -> Result<Outcome> {
        let planned = self.setup(candidate).and_then(|setup| Ok((plan_within(&setup)?, setup)));
        let (plans, setup) = match planned {
            Ok(planned) => planned,
            Err(error) if error.is_out_of_memory() => return Ok(Outcome::TooLarge),
            Err(error) if error.exit_status() == 2 => return Ok(Outcome::Unplanned(error)),
            Err(error) => return Err(error),
        };
        let fit = Fit::of(&setup, &plans, self.overhead(), RankForm::Threads);
        if !fit.fits {
            return Ok(Outcome::TooLarge);
        }
        let sent = plans.roles().iter().map(|plan| plan.step_traffic.total().bytes_sent).max().unwrap_or(0);
        let Candidate { layout, sets, .. } = candidate;
        // The cost with the actual partition of the layers instead of the assumed one.
        let cost = cost(&setup.config, &self.work, &self.rates, &setup.blueprint.stages)?;
        let (needs, available) = (fit.needs, fit.available());
        let (sets, layout) = (sets.clone(), *layout);
        let time = StepTime::of(&setup, &self.device)?;
        Ok(Outcome::Fits(Box::new(Proposal { sets, layout, cost, time, needs, available, sent })))
    }
}
