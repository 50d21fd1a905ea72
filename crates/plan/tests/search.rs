//! Tests of searches in which some configurations cannot be planned.

use crate::common::setup;
use config::RunConfig;
use plan::roles::plan_all;
use plan::{
    DeviceRanks, FitOptions, FitProgress, PlanDevice, PlanOptions, PlanTarget, Proposals, prepare, propose,
};
use worker::Placement;

fn search(config: &RunConfig, most_allocations: u64) -> plan::Result<Proposals> {
    let target = PlanTarget::from_argument("cuda").unwrap();
    let fit = FitOptions { ranks: 2, names_grid: false, most_allocations };
    let mut screened = Vec::new();
    let mut fits = 0;
    let mut on_progress = |progress: FitProgress<'_>| match progress {
        FitProgress::Screened { done, total } => screened.push((done, total)),
        FitProgress::Fits(_) => fits += 1,
    };
    let found = propose(config.clone(), &PlanOptions { target, capacity: None }, fit, &mut on_progress);
    if let Ok(proposals) = &found {
        let in_order =
            screened.iter().enumerate().all(|(index, (done, total))| *done == index && done < total);
        assert!(in_order && !screened.is_empty() && fits == proposals.list.len(), "{screened:?} {fits}");
    }
    found
}

/// Returns the largest number of allocations of a rank in the plan of a proposal.
fn allocations(config: &RunConfig, sets: &[String]) -> u64 {
    let device = PlanDevice::shipped().unwrap().description(DeviceRanks::CONNECTED);
    let plans = plan_all(&prepare(config.with(sets).unwrap(), Placement::Meta(device)).unwrap()).unwrap();
    plans.roles().iter().map(|plan| plan.statistics.handed_out()).max().unwrap()
}

#[test]
fn candidates_that_cannot_be_planned_are_left_out_and_counted() {
    let config = (*setup(true, &["parallel.lanes=2"]).config).clone();
    let all = search(&config, u64::MAX).unwrap();
    assert_eq!((all.unplanned, all.reason.as_ref()), (0, None));
    assert!(!all.to_string().contains("cannot be planned"));
    let mut needed: Vec<u64> = all.list.iter().map(|proposal| allocations(&config, &proposal.sets)).collect();
    needed.sort_unstable();
    assert!(needed[0] < needed[needed.len() / 2], "{needed:?}");
    let some = search(&config, needed[needed.len() / 2]).unwrap();
    assert!(some.unplanned > 0 && !some.list.is_empty(), "{some}");
    for part in [" cannot be planned: test.toml:", "use fewer, larger micro-batches or fewer stages"] {
        assert!(some.to_string().contains(part), "{some}");
    }
    assert_eq!(some.to_json()["unplanned"], some.unplanned);
    // If none can be planned, the reason is the error.
    let refused = search(&config, 1).unwrap_err();
    assert!(refused.is_too_long() && refused.exit_status() == 2, "{refused}");
}

/// Checks that pipelines with different shards each have their own limit.
#[test]
fn a_pipeline_that_can_be_planned_can_be_planned_with_shards() {
    let one = ["model.layers=64", "parallel.pipeline=64", "train.micro_batch_size=1", "parallel.lanes=1"];
    let alone = plan_all(&setup(true, &[&one[..], &["train.global_batch_size=512"]].concat())).unwrap();
    let shards =
        ["train.global_batch_size=1024", "parallel.data=2", "parallel.zero_stage=1", "parallel.lanes=2"];
    let both = plan_all(&setup(true, &[&one[..], &shards].concat())).unwrap();
    assert!(both.roles().len() > alone.roles().len());
}

/// Checks that state is offloaded for a device that cannot hold it, weights too for a smaller device, and
/// neither for a device that can hold all.
#[test]
fn offloading_is_proposed_where_nothing_else_fits() {
    let sizes = ["model.width=512", "model.layers=16", "train.global_batch_size=2", "parallel.lanes=1"];
    let config = (*setup(true, &[&["precision.compute=bf16"][..], &sizes].concat()).config).clone();
    let within = |capacity: Option<u64>| {
        let target = PlanTarget::from_argument("cuda").unwrap();
        let fit = FitOptions { ranks: 1, names_grid: false, most_allocations: u64::MAX };
        propose(config.clone(), &PlanOptions { target, capacity }, fit, &mut |_| ()).unwrap()
    };
    let offloaded = |proposals: &Proposals| {
        let first = proposals.list.first();
        let sets = first.map_or(&[][..], |first| &first.sets);
        ["optim.offload=true", "memory.offload_weights=true"].map(|key| sets.iter().any(|set| set == key))
    };
    let all = within(None);
    assert_eq!(offloaded(&all), [false, false], "{all}");
    // The overhead, and one byte less than the least needed without offloading.
    let least = |proposals: &Proposals| {
        let least = proposals.list.iter().min_by_key(|proposal| proposal.needs).unwrap();
        proposals.to_json()["capacity_bytes"].as_u64().unwrap() - least.available + least.needs
    };
    let state = within(Some(least(&all) - 1));
    assert_eq!(offloaded(&state), [true, false], "{state}");
    let weights = within(Some(least(&state) - 1));
    assert_eq!(offloaded(&weights), [true, true], "{weights}");
    let nothing = within(Some(least(&weights) - 1));
    assert!(nothing.list.is_empty() && nothing.nearest.is_some(), "{nothing}");
}
