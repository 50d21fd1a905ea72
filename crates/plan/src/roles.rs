//! Plans of all ranks. Ranks with the same role are planned once, for any world size.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use device::{Description, Kind};

use crate::error::{PlanError, Result};
use crate::imitated::PlanDevice;
use crate::overhead::{DeviceRanks, OverheadPart};
use crate::plan::{Plan, Role, boundless, plan, plan_recording, work_of_each};
use parallel::ParallelError;
use parallel::pipeline::PlanWork;
use system::threads;
use telemetry::units::grouped;
use worker::{Placement, Setup, WorkerError};

/// The plan of every role in a run, and the role of every rank.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    /// The plan of each role's first rank.
    roles: Vec<Plan>,
    /// Index in `roles` by rank.
    role_by_rank: Vec<usize>,
}

impl Plans {
    /// Returns the plans of all roles, in the order of their first ranks.
    #[must_use]
    pub fn roles(&self) -> &[Plan] {
        &self.roles
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.role_by_rank.len()
    }

    /// Returns the role of `rank`, or `None` if there is no such rank.
    #[must_use]
    pub fn role_of(&self, rank: usize) -> Option<usize> {
        self.role_by_rank.get(rank).copied()
    }

    /// Iterates over all ranks with the plan of their role, which may have been made for another rank.
    pub fn by_rank(&self) -> impl Iterator<Item = (usize, &Plan)> {
        self.role_by_rank.iter().enumerate().map(|(rank, role)| (rank, &self.roles[*role]))
    }

    /// Iterates over the ranks with a role.
    pub fn ranks_of(&self, role: usize) -> impl Iterator<Item = usize> {
        self.role_by_rank.iter().enumerate().filter(move |(_, other)| **other == role).map(|(rank, _)| rank)
    }

    /// Returns the plan that reserves the most; the first of equals.
    #[must_use]
    pub fn largest(&self) -> Option<&Plan> {
        self.roles.iter().rev().max_by_key(|plan| plan.statistics.peak_reserved())
    }

    /// Returns whether every rank fits on its device.
    #[must_use]
    pub fn fit(&self) -> bool {
        self.roles.iter().all(|plan| plan.fits)
    }
}

/// Plans every rank on an imitation of its device. A rank that does not fit is planned with unlimited memory
/// and marked.
pub fn plan_all(setup: &Setup) -> Result<Plans> {
    plan_roles(&imitation(setup)?, plan_or_measure)
}

/// Plans one rank like [`plan_all`].
pub fn plan_one(setup: &Setup, rank: usize) -> Result<Plan> {
    plan(&imitation(setup)?, rank).map_err(refused)
}

/// Plans a run that may not fit.
///
/// # Errors
/// A rank does not fit, or the run fails.
pub fn plan_within(setup: &Setup) -> Result<Plans> {
    plan_roles(&imitation(setup)?, plan)
}

/// Plans a run that does not fit with unlimited memory, to find how much it needs.
pub(crate) fn plan_boundless(setup: &Setup) -> Result<Plans> {
    let on_host = setup.placement.description().kind == Kind::Cpu;
    // Resident bytes on the CPU are computed from traces.
    if on_host { plan_roles(&boundless(setup), plan) } else { count_within(&boundless(setup)) }
}

/// Like [`plan_within`], for a search: skips all repeated micro-batches, traces and resident bytes.
pub(crate) fn count_within(setup: &Setup) -> Result<Plans> {
    plan_roles(&skipping(&imitation(setup)?), |setup, rank| plan_recording(setup, rank, 0))
}

/// Makes plans of `setup` skip all repeated micro-batches, so that they cannot be compared with a run.
pub(crate) fn skipping(setup: &Setup) -> Setup {
    let work = PlanWork { skips_from: 0, ..work_of_each(1, 1) };
    Setup { plan_work: Some(work), ..setup.clone() }
}

/// Limits plans of `setup` to `most` allocations per rank, if that is below the default.
pub(crate) fn limited_to(setup: Setup, most: u64) -> Setup {
    let work = work_of_each(1, 1);
    match most < work.most {
        true => Setup { plan_work: Some(PlanWork { most, ..work }), ..setup },
        false => setup,
    }
}

fn plan_roles(setup: &Setup, plan: impl Fn(&Setup, usize) -> Result<Plan> + Sync) -> Result<Plans> {
    let mut numbers: BTreeMap<Role, usize> = BTreeMap::new();
    let mut role_by_rank = Vec::new();
    let mut first_ranks = Vec::new();
    for rank in 0..setup.config.world_size() {
        let next = first_ranks.len();
        let role = match numbers.entry(Role::from_rank(setup, rank)?) {
            Entry::Occupied(before) => *before.get(),
            Entry::Vacant(new) => {
                first_ranks.push(rank);
                *new.insert(next)
            }
        };
        role_by_rank.push(role);
    }
    let stages = numbers.keys().map(|role| role.stage).collect::<BTreeSet<_>>().len();
    let work = work_of_each(first_ranks.len(), stages);
    let limits = setup.plan_work.unwrap_or(work);
    let work = PlanWork { skips_from: limits.skips_from, most: work.most.min(limits.most) };
    let setup = Setup { plan_work: Some(work), ..setup.clone() };
    let roles = on_threads(&first_ranks, |rank| plan(&setup, rank));
    let roles = roles.map_err(|error| refused_or_too_long(&setup, first_ranks.len(), error))?;
    Ok(Plans { roles, role_by_rank })
}

/// Converts the error of a plan with `roles` distinct roles into a refusal.
pub(crate) fn refused_or_too_long(setup: &Setup, roles: usize, error: PlanError) -> PlanError {
    match is_too_long(&error) {
        true => too_long(setup, roles),
        false => refused(error),
    }
}

/// Returns the run on Meta. Memory of a real GPU that the allocator cannot use is subtracted.
pub fn imitation(setup: &Setup) -> Result<Setup> {
    if setup.placement.is_meta() {
        return Ok(setup.clone());
    }
    let taken_bytes = taken(setup)?.iter().map(|part| part.bytes).sum();
    let description = Description { taken_bytes, ..setup.placement.description() };
    Ok(Setup { placement: Placement::Meta(description), ..setup.clone() })
}

/// Returns the memory of a GPU that the allocator cannot use, as measured on such a GPU; empty for other
/// devices.
pub fn taken(setup: &Setup) -> Result<Vec<OverheadPart>> {
    let description = setup.placement.description();
    if setup.placement.is_meta() || description.kind != Kind::Cuda {
        return Ok(Vec::new());
    }
    let parts = PlanDevice::overhead_of(&description)?.parts(DeviceRanks::from_config(&setup.config));
    Ok(parts.into_iter().filter(|part| part.measured).collect())
}

/// Plans a rank, with unlimited memory if it does not fit.
fn plan_or_measure(setup: &Setup, rank: usize) -> Result<Plan> {
    match plan(setup, rank) {
        Err(error) if error.is_out_of_memory() => {}
        planned => return planned,
    }
    let planned = plan(&boundless(setup), rank).map_err(|error| match error.is_out_of_memory() {
        true => PlanError::Refused(format!("the run does not fit on any device: {error}")),
        false => error,
    });
    planned.map(|plan| Plan { fits: false, ..plan })
}

/// Returns whether planning a rank exceeded the allowed work.
fn is_too_long(error: &PlanError) -> bool {
    let PlanError::Worker(error) = error else { return false };
    let error = match error {
        WorkerError::Step { source, .. } => source,
        other => other,
    };
    matches!(error, WorkerError::Parallel(ParallelError::PlanWork { .. }))
}

fn too_long(setup: &Setup, roles: usize) -> PlanError {
    let index = setup.config.origins.find("train.global_batch_size");
    let different = match roles {
        1 => "the rank".to_owned(),
        roles => format!("{} ranks with different work", grouped(roles as u64)),
    };
    PlanError::TooLong(format!(
        "{index}: a plan runs the passes of a step until they repeat, and those of {different} do not within \
         {} allocations: use fewer, larger micro-batches or fewer stages (`plimsoll train --no-plan` trains \
         without a plan)",
        grouped(setup.plan_work.map_or(0, |work| work.most * roles as u64))
    ))
}

/// Converts a planning error into a refusal, because nothing has been allocated yet.
fn refused(error: PlanError) -> PlanError {
    match error.is_out_of_memory() || error.exit_status() == 2 {
        true => error,
        false => PlanError::Refused(error.to_string()),
    }
}

/// Calls `body` for each of `ranks` on as many threads as there are processors. Returns the results in order.
///
/// # Errors
/// The error of the first rank that fails.
pub(crate) fn on_threads<T: Send>(
    ranks: &[usize],
    body: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let threads = threads::processors().min(ranks.len());
    if threads <= 1 {
        return ranks.iter().map(|rank| body(*rank)).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(rank) = ranks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let planned = body(*rank);
            if planned.is_err() {
                // Later ranks no longer matter.
                next.store(ranks.len(), Ordering::Relaxed);
            }
            done.push((*rank, planned));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let running: Vec<_> = (1..threads).map_while(|_| threads::spawn_scoped(scope, work).ok()).collect();
        // This thread works too, so that the plan completes even if no thread can be started.
        let own = work();
        // A panic is propagated to the caller.
        let results = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        results.flatten().chain(own).collect::<Vec<_>>()
    });
    done.sort_unstable_by_key(|(rank, _)| *rank);
    done.into_iter().map(|(_, planned)| planned).collect()
}
