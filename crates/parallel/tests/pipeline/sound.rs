//! Generated schedules of every shape are valid and hold no more than allowed.

use parallel::pipeline::{ActionKind, Held, ScheduleKind, validate};

use super::shapes::{every, of_kind};

#[test]
fn every_schedule_is_valid_for_both_kinds_of_sends() {
    for schedule in every() {
        let report = validate(&schedule).unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
        assert_eq!(report.rendezvous, [], "{schedule:?}");
        assert!(report.same_order, "{schedule:?}");
    }
}

/// Checked separately from the validator, because bits depend on it.
#[test]
fn backward_passes_are_in_micro_batch_order() {
    let halves = [
        [ActionKind::Backward, ActionKind::BackwardInput],
        [ActionKind::Backward, ActionKind::BackwardWeight],
    ];
    for schedule in every() {
        for (stage, half) in (0..schedule.stages).flat_map(|stage| halves.map(|half| (stage, half))) {
            let list = schedule.actions[schedule.rank_of(stage)].iter();
            let order = list.filter(|action| action.stage == stage && half.contains(&action.kind));
            let order: Vec<_> = order.map(|action| action.micro_batch).collect();
            assert_eq!(order, (0..schedule.micro_batches).collect::<Vec<_>>(), "{schedule:?}");
        }
    }
}

#[test]
fn at_most_one_tensor_per_stage_and_direction_is_received_ahead() {
    for schedule in every() {
        let loads = validate(&schedule).unwrap().loads;
        for (stage, load) in loads.stages.iter().enumerate() {
            let has_transfers = schedule.ranks > 1;
            assert_eq!(load.peak.received_forward, usize::from(has_transfers && stage > 0), "{schedule:?}");
            let last = stage + 1 == schedule.stages;
            assert_eq!(load.peak.received_backward, usize::from(has_transfers && !last), "{schedule:?}");
        }
    }
}

#[test]
fn gpipe_holds_every_micro_batch() {
    for schedule in of_kind(ScheduleKind::GPipe) {
        let loads = validate(&schedule).unwrap().loads;
        assert!(loads.stages.iter().all(|load| load.peak.activations == schedule.micro_batches));
    }
}

#[test]
fn one_forward_one_backward_holds_one_per_remaining_stage() {
    for schedule in of_kind(ScheduleKind::OneForwardOneBackward) {
        let loads = validate(&schedule).unwrap().loads;
        for (stage, load) in loads.stages.iter().enumerate() {
            assert_eq!(load.peak.activations, schedule.micro_batches.min(schedule.stages - stage));
            assert_eq!(load.peak.weights, 0);
        }
    }
}

/// Including micro-batches whose weight half is due, no stage holds more than the first stage of 1F1B.
#[test]
fn zero_bubble_holds_no_more_than_one_forward_one_backward() {
    for schedule in of_kind(ScheduleKind::ZeroBubble) {
        let loads = validate(&schedule).unwrap().loads;
        let most = schedule.micro_batches.min(schedule.stages);
        for (stage, load) in loads.stages.iter().enumerate() {
            assert_eq!(load.peak.activations, schedule.micro_batches.min(schedule.stages - stage));
            assert!(load.during.iter().all(|held| held.activations + held.weights <= most), "{schedule:?}");
        }
    }
}

#[test]
fn levels_are_the_largest_pairs_held_at_once() {
    for schedule in of_kind(ScheduleKind::ZeroBubble) {
        for load in validate(&schedule).unwrap().loads.stages {
            for (a, w) in [(1, 0), (0, 1), (1, 1), (5, 2), (2, 5)] {
                let cost = |held: &Held| a * held.activations + w * held.weights;
                let levels = load.levels();
                assert_eq!(levels.iter().map(cost).max(), load.during.iter().map(cost).max());
                assert!(levels.len() <= load.peak.activations + 1);
            }
        }
    }
}
