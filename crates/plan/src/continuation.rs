//! The grid with which a run continues when it has fewer ranks than configured, or more again.
//!
//! Only settings that leave the bits unchanged may differ: the number of data-parallel ranks and, if the run
//! does not fit otherwise, the ZeRO stage and recomputation.

use config::{Parallel, RunConfig};
use telemetry::units::counted;
use worker::Placement;

use crate::error::{PlanError, Result};
use crate::fit::Fit;
use crate::host::RankForm;
use crate::imitated::PlanDevice;
use crate::overhead::DeviceRanks;
use crate::prepare::prepare_shapes;
use crate::recompute;
use crate::resolve::resolve;
use crate::roles::plan_all;
use crate::screening::{Screen, TimedLayers};
use crate::target::PlanOptions;

/// Maximum number of grids planned with the same memory settings before the next settings are tried.
const MOST_PLANNED: usize = 4;
/// The highest ZeRO stage.
const HIGHEST_STAGE: u32 = 3;

/// A grid for the remaining ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// Keys that configure this grid, each as `section.key=value`; empty for the configured grid.
    pub sets: Vec<String>,
    /// Number of ranks.
    pub ranks: usize,
}

/// A grid that the configuration accepts, and its estimated seconds per step.
struct Candidate {
    grid: Continuation,
    config: RunConfig,
    seconds: f64,
}

/// Returns the configured grid if there are enough ranks, else the fastest grid of at most `most_ranks` ranks
/// that fits. The other settings stay as configured if possible; otherwise the lowest ZeRO stage that fits is
/// chosen, and last also recomputation. Among equally fast grids, the smallest is chosen.
///
/// # Errors
/// The configuration or device is invalid, there are too few ranks for any grid, or no grid fits.
pub fn continuation(config: &RunConfig, options: &PlanOptions, most_ranks: usize) -> Result<Continuation> {
    if most_ranks >= config.world_size() {
        return Ok(Continuation { sets: Vec::new(), ranks: config.world_size() });
    }
    let search = Search::from_config(config, options)?;
    let mut is_accepted = false;
    for settings in savings(config) {
        let candidates = search.candidates(&settings, most_ranks);
        is_accepted |= !candidates.is_empty();
        for candidate in candidates.into_iter().take(MOST_PLANNED) {
            if search.fits(&candidate.config)? {
                return Ok(candidate.grid);
            }
        }
    }
    Err(PlanError::Refused(match is_accepted {
        true => format!(
            "the run does not fit on {most_ranks} ranks, also not with ZeRO stage 3 and recomputed blocks"
        ),
        false => format!(
            "no grid has {} or fewer: the configuration has {}",
            counted(most_ranks as u64, "rank"),
            config.parallel.grid_in_words()
        ),
    }))
}

/// The configuration whose grids are searched, and the model that predicts their times.
struct Search {
    config: RunConfig,
    device: PlanDevice,
    layers: TimedLayers,
}

impl Search {
    fn from_config(config: &RunConfig, options: &PlanOptions) -> Result<Self> {
        let ranks = DeviceRanks::from_config(config);
        let device = options.target.device(options.capacity, ranks)?;
        let (config, _) = resolve(config.clone(), &device.description(ranks))?;
        let layers = Screen::for_device(&device, ranks)?.layers(&config, None)?;
        Ok(Search { config, device, layers })
    }

    /// Returns the grids of at most `most_ranks` ranks that the configuration accepts with these settings,
    /// the fastest first.
    fn candidates(&self, settings: &[String], most_ranks: usize) -> Vec<Candidate> {
        let others = self.config.world_size() / self.config.parallel.data;
        let candidate = |data: usize| self.candidate(sets(&self.config, data, settings));
        let mut all: Vec<_> = (1..=most_ranks / others).filter_map(candidate).collect();
        all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(a.grid.ranks.cmp(&b.grid.ranks)));
        all
    }

    /// Returns the candidate with these settings; `None` if the configuration rejects them.
    fn candidate(&self, sets: Vec<String>) -> Option<Candidate> {
        let config = self.config.with(&sets).ok()?;
        let ranks = config.world_size();
        let screen = Screen::for_device(&self.device, DeviceRanks::from_config(&config)).ok()?;
        let seconds = screen.seconds(&config, &self.layers).ok()?;
        Some(Candidate { grid: Continuation { sets, ranks }, config, seconds })
    }

    fn fits(&self, config: &RunConfig) -> Result<bool> {
        let ranks = DeviceRanks::from_config(config);
        let setup = prepare_shapes(config.clone(), Placement::Meta(self.device.description(ranks)))?;
        let planned = recompute::settle(setup).and_then(|setup| Ok((plan_all(&setup)?, setup)));
        let (plans, setup) = match planned {
            Ok(planned) => planned,
            Err(error) if error.is_out_of_memory() => return Ok(false),
            Err(error) => return Err(error),
        };
        let form = RankForm::Processes { mpi: true };
        Ok(Fit::from_plans(&setup, &plans, self.device.overhead.parts(ranks), form).fits)
    }
}

/// Returns settings in order of decreasing memory, beginning with the configured settings.
fn savings(config: &RunConfig) -> Vec<Vec<String>> {
    let stage = |stage: u32| format!("{}={stage}", Parallel::zero_stage);
    let higher = (config.parallel.zero_stage + 1..=HIGHEST_STAGE).map(|higher| vec![stage(higher)]);
    let least = [stage(HIGHEST_STAGE), "memory.recompute=block".to_owned()];
    std::iter::once(Vec::new()).chain(higher).chain([least.to_vec()]).collect()
}

fn sets(config: &RunConfig, data: usize, settings: &[String]) -> Vec<String> {
    let parallel = &config.parallel;
    let mut sets = vec![format!("{}={data}", Parallel::data)];
    if parallel.shard > 0 && !data.is_multiple_of(parallel.shard) {
        sets.push(format!("{}=0", Parallel::shard));
    }
    sets.extend_from_slice(settings);
    sets
}
