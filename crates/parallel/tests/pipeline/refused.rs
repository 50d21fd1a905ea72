//! Invalid schedules and shapes are rejected with a reason.

use parallel::pipeline::{
    Action, ActionKind, ActionTimes, Schedule, ScheduleError, ScheduleKind, Sends, Shape, Stuck, deadlock,
    simulate, validate,
};
use proptest::prelude::*;

use super::shapes::schedule;

use ActionKind::{
    Backward, BackwardInput, BackwardWeight, Forward, ReceiveBackward, ReceiveForward, SendBackward,
    SendForward,
};

#[test]
fn shapes() {
    let refusal = |kind, ranks, chunks, micro_batches| {
        Schedule::new(kind, Shape { ranks, chunks, micro_batches }).unwrap_err().to_string()
    };
    let table = [
        (ScheduleKind::Interleaved, 4, 2, 6, "interleaved: 6 micro-batches are not a multiple of 4 ranks"),
        (ScheduleKind::GPipe, 4, 2, 8, "gpipe: 2 stages per rank: only interleaved has more than one"),
        (
            ScheduleKind::ZeroBubble,
            2,
            3,
            8,
            "zero-bubble: 3 stages per rank: only interleaved has more than one",
        ),
    ];
    for (kind, ranks, chunks, micro_batches, message) in table {
        assert_eq!(refusal(kind, ranks, chunks, micro_batches), message);
    }
    for (ranks, chunks, micro_batches) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        let message = refusal(ScheduleKind::OneForwardOneBackward, ranks, chunks, micro_batches);
        assert!(message.ends_with("there is nothing to schedule"), "{message}");
    }
}

#[test]
fn names() {
    for kind in ScheduleKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "1f1f".parse::<ScheduleKind>().unwrap_err();
    assert!(error.to_string().contains("\"1f1f\" is not a schedule"), "{error}");
}

/// A change that damages a schedule's lists.
type Change<'a> = dyn Fn(&mut Vec<Vec<Action>>) + 'a;

/// Changed lists of GPipe with two ranks and two micro-batches, and the resulting errors.
#[test]
fn unsound_lists() {
    let a = Action::new;
    let change = |change: &Change<'_>| {
        let mut schedule = schedule(ScheduleKind::GPipe, 2, 1, 2);
        change(&mut schedule.actions);
        validate(&schedule).unwrap_err().to_string()
    };
    let find = |list: &[Action], action: Action| list.iter().position(|other| *other == action).unwrap();
    let table: [(&Change<'_>, &str); 12] = [
        (
            &|lists| lists[0].retain(|action| *action != a(0, Forward, 1)),
            "SendForward of micro-batch 1 in stage 0: it needs Forward of micro-batch 1 in stage 0 first",
        ),
        (
            &|lists| lists[0].retain(|action| *action != a(0, Backward, 1)),
            "rank 0: BackwardInput of micro-batch 1 in stage 0: it is missing",
        ),
        (
            &|lists| lists[0].push(a(0, Forward, 0)),
            "rank 0, index 8: Forward of micro-batch 0 in stage 0: it is done already",
        ),
        (
            &|lists| lists[0].push(a(0, BackwardWeight, 0)),
            "rank 0, index 8: BackwardWeight of micro-batch 0 in stage 0: it is done already",
        ),
        (
            &|lists| lists[0].push(a(2, Forward, 0)),
            "rank 0, index 8: Forward of micro-batch 0 in stage 2: there is no such",
        ),
        (
            &|lists| lists[0].push(a(0, Forward, 2)),
            "rank 0, index 8: Forward of micro-batch 2 in stage 0: there is no such",
        ),
        (
            &|lists| lists[0].push(a(0, ReceiveForward, 0)),
            "ReceiveForward of micro-batch 0 in stage 0: there is no such",
        ),
        (
            &|lists| lists[1].push(a(1, SendForward, 0)),
            "SendForward of micro-batch 0 in stage 1: there is no such",
        ),
        (
            &|lists| lists[0].push(a(1, Forward, 0)),
            "rank 0, index 8: Forward of micro-batch 0 in stage 1: that stage is on rank 1",
        ),
        (
            &|lists| {
                let x = find(&lists[1], a(1, Backward, 0));
                let y = find(&lists[1], a(1, Backward, 1));
                lists[1][x] = a(1, BackwardInput, 1);
                lists[1][y] = a(1, BackwardInput, 0);
            },
            "SendBackward of micro-batch 0 in stage 1: it needs BackwardInput of micro-batch 0 in stage 1 first",
        ),
        (
            &|lists| {
                let y = find(&lists[1], a(1, Backward, 1));
                lists[1][y] = a(1, BackwardInput, 1);
                let x = find(&lists[1], a(1, Backward, 0));
                lists[1][x] = a(1, BackwardInput, 0);
                lists[1].extend([a(1, BackwardWeight, 1), a(1, BackwardWeight, 0)]);
            },
            "BackwardWeight of micro-batch 0 in stage 1: it comes after that of micro-batch 1",
        ),
        (
            &|lists| {
                let (x, y) =
                    (find(&lists[1], a(1, ReceiveForward, 0)), find(&lists[1], a(1, ReceiveForward, 1)));
                let first = x.min(y);
                let second = x.max(y);
                let later = lists[1].remove(second);
                lists[1].insert(first, later);
            },
            "rank 0, index 1: SendForward of micro-batch 0 in stage 0: rank 1 then receives something else, at index 0: \
             ReceiveForward of micro-batch 1 in stage 1",
        ),
    ];
    for (changed, expected) in table {
        let message = change(changed);
        assert!(message.contains(expected), "{message}\ndoes not contain\n{expected}");
    }
}

/// Each rank first receives a tensor that the other sends only after a receive.
#[test]
fn deadlocks() {
    let a = Action::new;
    let mut schedule = schedule(ScheduleKind::GPipe, 2, 1, 2);
    schedule.actions = vec![
        vec![
            a(0, Forward, 0),
            a(0, SendForward, 0),
            a(0, ReceiveBackward, 0),
            a(0, Backward, 0),
            a(0, Forward, 1),
            a(0, SendForward, 1),
            a(0, ReceiveBackward, 1),
            a(0, Backward, 1),
        ],
        vec![
            a(1, ReceiveForward, 0),
            a(1, Forward, 0),
            a(1, ReceiveForward, 1),
            a(1, Forward, 1),
            a(1, Backward, 0),
            a(1, SendBackward, 0),
            a(1, Backward, 1),
            a(1, SendBackward, 1),
        ],
    ];
    let stuck = vec![
        Stuck { rank: 0, index: 2, action: a(0, ReceiveBackward, 0) },
        Stuck { rank: 1, index: 2, action: a(1, ReceiveForward, 1) },
    ];
    let error = validate(&schedule).unwrap_err();
    assert_eq!(error, ScheduleError::Deadlock(stuck));
    let expected =
        "deadlock: rank 0 waits at index 2: ReceiveBackward of micro-batch 0 in stage 0; rank 1 waits at";
    assert!(error.to_string().starts_with(expected), "{error}");
}

/// Textbook 1F1B without paired transfers: valid if sends are buffered, deadlocked if they wait.
#[test]
fn opposite_sends_deadlock_only_if_they_wait() {
    let a = Action::new;
    let mut schedule = schedule(ScheduleKind::OneForwardOneBackward, 2, 1, 2);
    let find = |list: &[Action], action: Action| list.iter().position(|other| *other == action).unwrap();
    // Rank 1 sends its gradient before it receives the second micro-batch, which rank 0 is still sending.
    let receive = find(&schedule.actions[1], a(1, ReceiveForward, 1));
    schedule.actions[1].remove(receive);
    let send = find(&schedule.actions[1], a(1, SendBackward, 0));
    schedule.actions[1].insert(send + 1, a(1, ReceiveForward, 1));
    let report = validate(&schedule).unwrap();
    assert!(!report.same_order);
    let at = |rank: usize, action| Stuck { rank, index: find(&schedule.actions[rank], action), action };
    assert_eq!(report.rendezvous, [at(0, a(0, SendForward, 1)), at(1, a(1, SendBackward, 0))]);
    assert_eq!(report.rendezvous, deadlock(&schedule, Sends::Rendezvous));
    assert_eq!(deadlock(&schedule, Sends::Buffered), []);
}

#[test]
fn too_many_in_flight() {
    let mut schedule = schedule(ScheduleKind::GPipe, 4, 1, 6);
    schedule.kind = ScheduleKind::OneForwardOneBackward;
    let error = validate(&schedule).unwrap_err();
    let ScheduleError::TooMany { rank: 0, action, held: 5, bound: 4, .. } = error else { panic!("{error}") };
    assert_eq!(action.micro_batch, 4, "{error}");
    let message = error.to_string();
    assert!(
        message.ends_with("Forward of micro-batch 4 in stage 0: 5 micro-batches are held, the bound is 4"),
        "{message}"
    );
}

/// ZB-H1 has two bounds: at most 4 including kept halves, but only 2 activations on the third of four stages.
#[test]
fn too_many_activations_with_few_kept_halves() {
    let mut schedule = schedule(ScheduleKind::GPipe, 4, 1, 3);
    schedule.kind = ScheduleKind::ZeroBubble;
    let error = validate(&schedule).unwrap_err();
    assert!(matches!(error, ScheduleError::TooMany { rank: 2, held: 3, bound: 2, .. }), "{error}");
}

#[test]
fn broken_shapes_are_errors_not_panics() {
    let good = schedule(ScheduleKind::GPipe, 2, 1, 2);
    let broken = [
        Schedule { ranks: 0, ..good.clone() },
        Schedule { stages: 3, ..good.clone() },
        Schedule { actions: vec![], ..good.clone() },
        Schedule { micro_batches: 0, ..good },
    ];
    for schedule in broken {
        assert!(matches!(validate(&schedule), Err(ScheduleError::Shape { .. })), "{schedule:?}");
        assert!(simulate(&schedule, &ActionTimes::equal(2, [1, 1, 1], 0)).is_err());
    }
}

proptest! {
    /// A list with a missing or repeated action is never valid; a list with two exchanged actions is refused
    /// or runs.
    #[test]
    fn damaged_lists_are_refused_or_run(
        kind in 0..4_usize,
        ranks in 1..=5_usize,
        rounds in 1..=3_usize,
        at in any::<[prop::sample::Index; 3]>(),
    ) {
        let kind = ScheduleKind::ALL[kind];
        let chunks = if kind == ScheduleKind::Interleaved { 2 } else { 1 };
        let good = schedule(kind, ranks, chunks, ranks * rounds);
        let rank = at[0].index(ranks);
        let x = at[1].index(good.actions[rank].len());
        let y = at[2].index(good.actions[rank].len());
        let mut lacks = good.clone();
        let action = lacks.actions[rank].remove(x);
        prop_assert!(validate(&lacks).is_err());
        let mut twice = good.clone();
        twice.actions[rank].insert(y, action);
        prop_assert!(validate(&twice).is_err());
        let mut exchanged = good.clone();
        exchanged.actions[rank].swap(x, y);
        if let Ok(report) = validate(&exchanged) {
            prop_assert_eq!(deadlock(&exchanged, Sends::Buffered), vec![]);
            let run = simulate(&exchanged, &ActionTimes::equal(exchanged.stages, [1, 1, 1], 1));
            prop_assert!(run.is_ok() || !report.rendezvous.is_empty());
        }
    }
}
