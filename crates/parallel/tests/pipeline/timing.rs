//! Bubbles have the papers' size, and simulated actions start after their inputs.

use std::collections::HashMap;

use parallel::pipeline::{
    Action, ActionKind, ActionTimes, Schedule, ScheduleError, ScheduleKind, Shape, StageTimes, Timeline,
    loads, simulate,
};
use proptest::prelude::*;

use super::shapes::{every, of_kind, schedule};

fn equal(schedule: &Schedule, passes: [u64; 3]) -> Timeline {
    simulate(schedule, &ActionTimes::equal(schedule.stages, passes, 0)).unwrap()
}

/// Asserts that the fraction of idle time over all ranks is exactly `part / whole`.
fn assert_bubble(schedule: &Schedule, timeline: &Timeline, part: usize, whole: usize) {
    let all = timeline.makespan * schedule.ranks as u64;
    let idle = all - timeline.busy.iter().sum::<u64>();
    assert_eq!(
        idle * whole as u64,
        all * part as u64,
        "{:?}",
        (schedule.kind, schedule.ranks, schedule.micro_batches)
    );
    assert!((timeline.bubble() - part as f64 / whole as f64).abs() < 1e-12);
}

#[test]
fn bubble_of_gpipe_and_one_forward_one_backward() {
    for kind in [ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward] {
        for schedule in of_kind(kind) {
            let p = schedule.ranks;
            let m = schedule.micro_batches;
            for passes in [[1, 1, 1], [2, 1, 1], [7, 3, 2]] {
                assert_bubble(&schedule, &equal(&schedule, passes), p - 1, m + p - 1);
            }
        }
    }
}

#[test]
fn bubble_of_interleaved_is_smaller_by_the_number_of_chunks() {
    for schedule in of_kind(ScheduleKind::Interleaved) {
        let p = schedule.ranks;
        let v = schedule.chunks();
        let m = schedule.micro_batches;
        for passes in [[1, 1, 1], [2, 1, 1]] {
            assert_bubble(&schedule, &equal(&schedule, passes), p - 1, v * m + p - 1);
        }
    }
}

/// The paper gives (p − 1) (forward + input half − weight half) instead of 1F1B's (p − 1) (all three).
#[test]
fn bubble_of_zero_bubble_is_a_third() {
    for schedule in of_kind(ScheduleKind::ZeroBubble) {
        let p = schedule.ranks;
        let m = schedule.micro_batches;
        let timeline = equal(&schedule, [1, 1, 1]);
        let plain = super::shapes::schedule(ScheduleKind::OneForwardOneBackward, p, 1, m);
        let plain = equal(&plain, [1, 1, 1]);
        if p > 1 {
            assert!(timeline.bubble() < plain.bubble(), "{p} ranks, {m} micro-batches");
        }
        if m >= 2 * p {
            assert_eq!(timeline.makespan, (3 * m + p - 1) as u64, "{p} ranks, {m} micro-batches");
        }
    }
}

#[test]
fn activations_over_time() {
    let schedule = schedule(ScheduleKind::ZeroBubble, 2, 1, 3);
    let timeline = equal(&schedule, [1, 1, 1]);
    let loads = loads(&schedule);
    let over_time = |rank: usize| -> Vec<_> {
        let changes = timeline.over_time(&schedule, rank, &loads.ranks[rank]);
        changes.into_iter().map(|(time, held)| (time, held.activations, held.weights)).collect()
    };
    // rank 0: F0 F1 ·  B0 W0 F2 B1 W1 B2 W2        rank 1: ·  F0 B0 F1 B1 W0 F2 B2 W1 W2
    let first = [(0, 1, 0), (1, 2, 0), (4, 1, 1), (5, 2, 0), (7, 1, 1), (8, 1, 0), (9, 0, 1)];
    let second = [(1, 1, 0), (3, 1, 1), (5, 0, 2), (6, 1, 1), (8, 0, 2), (9, 0, 1)];
    assert_eq!((over_time(0), over_time(1)), (first.to_vec(), second.to_vec()));
}

/// Two ranks, one micro-batch and a transfer of 5: the chain of actions is easy to follow.
#[test]
fn a_transfer_delays_what_needs_it() {
    let schedule = schedule(ScheduleKind::OneForwardOneBackward, 2, 1, 1);
    let timeline = simulate(&schedule, &ActionTimes::equal(2, [10, 10, 10], 5)).unwrap();
    let start = |rank: usize, kind| {
        let index = schedule.actions[rank].iter().position(|action| action.kind == kind).unwrap();
        timeline.spans[rank][index].start
    };
    assert_eq!((start(0, ActionKind::SendForward), start(1, ActionKind::ReceiveForward)), (10, 10));
    assert_eq!((start(1, ActionKind::Forward), start(1, ActionKind::Backward)), (15, 25));
    assert_eq!((start(0, ActionKind::Backward), timeline.makespan), (50, 70));
}

/// GPipe receives the next micro-batch while it computes, so transfers cost time only at the ends.
#[test]
fn transfers_are_hidden_except_at_the_ends() {
    let schedule = schedule(ScheduleKind::GPipe, 4, 1, 16);
    let timeline = simulate(&schedule, &ActionTimes::equal(4, [100, 100, 100], 20)).unwrap();
    assert_eq!(timeline.makespan, 300 * (16 + 3) + 2 * 3 * 20);
}

/// Returns the end time of a schedule whose transfers never wait for each other.
fn end_with_free_transfers(schedule: &Schedule, times: &ActionTimes) -> u64 {
    let wire = if schedule.ranks > 1 { times.transfer } else { 0 };
    let mut ends = HashMap::new();
    let mut lists: Vec<_> = schedule.actions.iter().map(|list| (0, list.iter().peekable())).collect();
    while lists.iter_mut().any(|(_, list)| list.peek().is_some()) {
        for (free, list) in &mut lists {
            while let Some(action) = list.peek() {
                let Action { stage, micro_batch, kind } = **action;
                let backward = matches!(kind, ActionKind::Backward | ActionKind::BackwardInput);
                let input = match kind {
                    ActionKind::Forward if stage > 0 => ends.get(&(false, stage - 1, micro_batch)),
                    _ if backward && stage + 1 < schedule.stages => ends.get(&(true, stage + 1, micro_batch)),
                    _ => Some(&0),
                };
                let Some(input) = input else { break };
                if kind.is_compute() {
                    *free = times.time(**action) + (*free).max(if *input > 0 { input + wire } else { 0 });
                    if backward || kind == ActionKind::Forward {
                        ends.insert((backward, stage, micro_batch), *free);
                    }
                }
                list.next();
            }
        }
    }
    lists.iter().map(|(free, _)| *free).max().unwrap()
}

/// With equal times, and transfers of up to a tenth of a pass, one transfer stream per rank costs no time.
#[test]
fn the_order_of_transfers_costs_nothing() {
    for schedule in every() {
        for transfer in [1, 4, 10] {
            let times = ActionTimes::equal(schedule.stages, [100, 100, 100], transfer);
            let makespan = simulate(&schedule, &times).unwrap().makespan;
            assert_eq!(makespan, end_with_free_transfers(&schedule, &times), "{transfer}: {schedule:?}");
        }
    }
}

#[test]
fn times_for_another_number_of_stages_are_refused() {
    let schedule = schedule(ScheduleKind::GPipe, 2, 1, 2);
    let error = simulate(&schedule, &ActionTimes::equal(3, [1, 1, 1], 0)).unwrap_err();
    assert_eq!(error, ScheduleError::Times { listed: 3, stages: 2 });
}

fn shape() -> impl Strategy<Value = (ScheduleKind, Shape)> {
    (0..4_usize, 1..=8_usize, 1..=4_usize, 1..=24_usize).prop_map(|(kind, ranks, chunks, m)| {
        let kind = ScheduleKind::ALL[kind];
        let interleaved = kind == ScheduleKind::Interleaved;
        let micro_batches = if interleaved { m.next_multiple_of(ranks) } else { m };
        (kind, Shape { ranks, chunks: if interleaved { chunks } else { 1 }, micro_batches })
    })
}

fn stage_times() -> impl Strategy<Value = StageTimes> {
    (0..50_u64, 0..50_u64, 0..50_u64).prop_map(|(forward, backward_input, backward_weight)| StageTimes {
        forward,
        backward_input,
        backward_weight,
    })
}

proptest! {
    /// For any times, passes of a rank follow each other, and every action starts after its inputs exist.
    #[test]
    fn no_action_starts_before_its_inputs(
        (kind, shape) in shape(),
        stages in proptest::collection::vec(stage_times(), 32),
        transfer in 0..60_u64,
    ) {
        let schedule = Schedule::new(kind, shape).unwrap();
        let times = ActionTimes { stages: stages[..schedule.stages].to_vec(), transfer };
        let timeline = simulate(&schedule, &times).unwrap();
        let span = |stage: usize, kinds: &[ActionKind], micro_batch: usize| {
            let list = &schedule.actions[schedule.rank_of(stage)];
            let is_wanted =
                |a: &Action| a.stage == stage && a.micro_batch == micro_batch && kinds.contains(&a.kind);
            list.iter().position(is_wanted).map(|index| timeline.spans[schedule.rank_of(stage)][index])
        };
        let backward = [ActionKind::Backward, ActionKind::BackwardInput];
        let wire = if schedule.ranks > 1 { transfer } else { 0 };
        for (rank, actions) in schedule.actions.iter().enumerate() {
            let mut free = 0;
            let spans = actions.iter().zip(&timeline.spans[rank]);
            for (action, now) in spans.filter(|(a, _)| a.kind.is_compute()) {
                prop_assert!(now.start >= free);
                prop_assert_eq!(now.end - now.start, times.time(*action));
                free = now.end;
                let Action { stage, micro_batch, kind } = *action;
                if kind == ActionKind::Forward && stage > 0 {
                    let input = span(stage - 1, &[ActionKind::Forward], micro_batch).unwrap();
                    prop_assert!(now.start >= input.end + wire);
                }
                if backward.contains(&kind) && stage + 1 < schedule.stages {
                    let input = span(stage + 1, &backward, micro_batch).unwrap();
                    prop_assert!(now.start >= input.end + wire);
                }
                if kind == ActionKind::BackwardWeight {
                    prop_assert!(now.start >= span(stage, &[ActionKind::BackwardInput], micro_batch).unwrap().end);
                }
            }
        }
        prop_assert!(timeline.busy.iter().all(|busy| *busy <= timeline.makespan));
    }
}
