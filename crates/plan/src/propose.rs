//! Configurations that fit a device, the fastest first: grids, schedules, ZeRO stages, recomputation and
//! micro-batch sizes, with the same number of samples in a step.

mod layout;
mod proposal;

use config::RunConfig;
use worker::Placement;
use worker::build::{self, DataScope};

use crate::cost::{cost, equal_stages};
use crate::error::{PlanError, Result};
use crate::fit::Fit;
use crate::overhead::DeviceRanks;
use crate::prepare::prepare_shapes;
use crate::roles::plan_within;
use crate::target::PlanOptions;
use crate::work::Work;
use layout::Layout;
pub use proposal::{Proposal, Proposals};

/// Number of proposals.
const PROPOSALS: usize = 12;

/// Plans configurations of `ranks` ranks that have the samples of `config` in a step, in the order of their
/// costs, until enough of them fit. `on_result` is called for each that fits.
///
/// Errors: those of a plan; a number of ranks for which no grid exists.
pub fn propose(
    config: RunConfig,
    options: &PlanOptions,
    ranks: usize,
    on_result: &mut dyn FnMut(&Proposal),
) -> Result<Proposals> {
    let on_device = DeviceRanks::of_world(&config, ranks);
    let device = options.target.device(options.capacity, on_device)?;
    let (rates, assumed) = device.rates_or_shipped()?;
    let description = device.description(on_device);
    let work = Work::count(&config, &build::dataset(&config, DataScope::Shapes)?, &description)?;
    let mut candidates = Vec::new();
    for layout in Layout::all(&config, ranks) {
        // A refused configuration is no candidate.
        let Ok(sets) = config.with_profile_of(layout.sets(&config)) else { continue };
        let Ok(changed) = config.with(&sets) else { continue };
        let Ok(cost) = cost(&changed, &work, &rates, &equal_stages(&changed)) else { continue };
        candidates.push((layout, sets, cost));
    }
    if candidates.is_empty() {
        let samples = config.train.global_batch_size;
        return Err(PlanError::Refused(format!(
            "--fit: no grid of {ranks} ranks divides the {samples} samples of a step and the model's layers"
        )));
    }
    candidates.sort_by(|(.., a), (.., b)| a.seconds().total_cmp(&b.seconds()));
    let all = candidates.len();
    let mut found = Proposals {
        list: Vec::new(),
        planned: 0,
        candidates: all,
        device_model: device.model.clone(),
        capacity: device.total_bytes,
        ranks,
        samples: config.train.global_batch_size,
        tokens: build::tokens_per_step(&config),
        assumed,
    };
    // Skip layouts that need no less than one that does not fit.
    let mut too_large: Vec<Layout> = Vec::new();
    for (layout, sets, _) in candidates {
        if too_large.iter().any(|other| layout.needs_no_less_than(other)) {
            continue;
        }
        let setup = prepare_shapes(config.with(&sets)?, Placement::Meta(description.clone()))?;
        found.planned += 1;
        let plans = match plan_within(&setup) {
            Ok(plans) => plans,
            Err(error) if error.is_out_of_memory() => {
                too_large.push(layout);
                continue;
            }
            Err(error) => return Err(error),
        };
        let fit = Fit::of(&setup, &plans, device.overhead.parts(on_device), true);
        if !fit.fits {
            too_large.push(layout);
            continue;
        }
        let sent = plans.roles().iter().map(|plan| plan.step_traffic.bytes_sent).max().unwrap_or(0);
        let (needs, available) = (fit.needs, fit.available());
        // The cost with the actual partition of the layers instead of the assumed one.
        let cost = cost(&setup.config, &work, &rates, &setup.blueprint.stages)?;
        let proposal = Proposal { sets, layout, cost, needs, available, sent };
        on_result(&proposal);
        found.list.push(proposal);
        if found.list.len() == PROPOSALS {
            break;
        }
    }
    found.list.sort_by(|a, b| a.cost.seconds().total_cmp(&b.cost.seconds()));
    Ok(found)
}
