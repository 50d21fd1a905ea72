use super::*;

fn copy(stream: StreamKind) -> LoggedCall {
    LoggedCall::Copy { kind: device::CopyKind::Within, bytes: 1, stream }
}

fn calls(rank: usize, calls: &[(LoggedCall, f64)], host: f64) -> RankCalls {
    repeated(rank, calls, host, Vec::new())
}

fn repeated(rank: usize, calls: &[(LoggedCall, f64)], host: f64, repeated: Vec<RepeatedCalls>) -> RankCalls {
    let log = CallLog { calls: calls.iter().map(|(call, _)| call.clone()).collect(), repeated };
    let mut made =
        RankCalls::new(rank, log, |_| CallTime { device: 0.0, host, is_measured: false, compute_speed: 1.0 });
    made.calls.iter_mut().zip(calls).for_each(|(made, (_, seconds))| made.seconds = *seconds);
    made
}

fn event(stream: StreamKind) -> LoggedEvent {
    LoggedEvent { stream, later: 0 }
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-9
}

#[test]
fn a_step_is_bound_by_the_device_or_by_the_host() {
    let work = [(copy(StreamKind::Compute), 2.0), (copy(StreamKind::Compute), 3.0)];
    let parts = &simulate(&[calls(0, &work, 1.0)]).unwrap()[0];
    assert!(close(parts.seconds(), 5.0) && close(parts.idle(Idle::Host), 0.0), "{parts:?}");
    let parts = &simulate(&[calls(0, &work, 4.0)]).unwrap()[0];
    assert!(close(parts.seconds(), 8.0) && close(parts.idle(Idle::Host), 3.0), "{parts:?}");
}

/// Checks copies that take 1 s on the device, after which it computes for 3 s.
#[test]
fn the_host_fills_pinned_memory_ahead_of_the_device() {
    let step = |bytes: usize, filling: f64| {
        let from_host =
            LoggedCall::Copy { kind: CopyKind::FromHost, bytes: bytes as u64, stream: StreamKind::Compute };
        let work = [(from_host, 1.0), (copy(StreamKind::Compute), 3.0)];
        let mut made = calls(0, &work, 0.0);
        made.calls[0].host = filling;
        simulate(&[made]).unwrap()[0].seconds()
    };
    // All fits pinned memory, which is filled during the step before.
    assert!(close(step(STAGED_BYTES, 2.0), 4.0));
    // Three quarters do not, and are filled during the copy.
    assert!(close(step(4 * STAGED_BYTES, 2.0), 4.5));
    assert!(close(step(4 * STAGED_BYTES, 0.5), 4.0));
    // The host takes longer than the device.
    assert!(close(step(STAGED_BYTES, 6.0), 6.0));
}

#[test]
fn compute_waits_for_what_other_streams_have_not_ended() {
    use StreamKind::{Compute, Reduce};
    let reduction = [
        (LoggedCall::Section("backward"), 0.0),
        (copy(Compute), 1.0),
        (LoggedCall::Record(Compute), 0.0),
        (LoggedCall::Wait { stream: Reduce, event: event(Compute) }, 0.0),
        (copy(Reduce), 5.0),
        (copy(Compute), 2.0),
        (LoggedCall::Record(Reduce), 0.0),
        (LoggedCall::Wait { stream: Compute, event: event(Reduce) }, 0.0),
        (LoggedCall::Section("optimizer"), 0.0),
        (copy(Compute), 1.0),
    ];
    let parts = &simulate(&[calls(0, &reduction, 0.0)]).unwrap()[0];
    // 1 s of compute, 5 s of reduction beside 2 s of compute, 1 s of the update.
    assert!(close(parts.seconds(), 7.0) && close(parts.idle(Idle::Reduction), 3.0), "{parts:?}");
    assert!(close(parts.section("backward"), 3.0) && close(parts.section("optimizer"), 1.0), "{parts:?}");
}

/// Checks that an exchange within a layer begins when the pipeline's message has arrived.
#[test]
fn each_of_several_waits_counts_from_the_end_of_the_one_before() {
    use StreamKind::{Compute, Exchange, Transfer};
    let pass = [
        (copy(Transfer), 4.0),
        (LoggedCall::Record(Transfer), 0.0),
        (LoggedCall::Wait { stream: Compute, event: event(Transfer) }, 0.0),
        (LoggedCall::Record(Compute), 0.0),
        (LoggedCall::Wait { stream: Exchange, event: event(Compute) }, 0.0),
        (copy(Exchange), 2.0),
        (LoggedCall::Record(Exchange), 0.0),
        (LoggedCall::Wait { stream: Compute, event: event(Exchange) }, 0.0),
        (copy(Compute), 1.0),
        // The next message begins then.
        (LoggedCall::Record(Compute), 0.0),
        (LoggedCall::Wait { stream: Transfer, event: event(Compute) }, 0.0),
    ];
    let parts = &simulate(&[calls(0, &pass, 0.0)]).unwrap()[0];
    assert!(close(parts.seconds(), 7.0), "{parts:?}");
    assert!(close(parts.idle(Idle::Pipeline), 4.0) && close(parts.idle(Idle::Layers), 2.0), "{parts:?}");
}

#[test]
fn ranks_wait_for_each_other() {
    let message = |sends: &[(usize, u64)], receives: &[(usize, u64)]| {
        LoggedCall::Communication(LoggedCommunication {
            operation: "exchange",
            bytes: 1,
            ranks: vec![0, 1],
            sends: sends.to_vec(),
            receives: receives.to_vec(),
            stream: StreamKind::Transfer,
        })
    };
    let first = [
        (copy(StreamKind::Compute), 4.0),
        (LoggedCall::Record(StreamKind::Compute), 0.0),
        (LoggedCall::Wait { stream: StreamKind::Transfer, event: event(StreamKind::Compute) }, 0.0),
        (message(&[(1, 1)], &[]), 1.0),
    ];
    let second = [
        (message(&[], &[(0, 1)]), 1.0),
        (LoggedCall::Record(StreamKind::Transfer), 0.0),
        (LoggedCall::Wait { stream: StreamKind::Compute, event: event(StreamKind::Transfer) }, 0.0),
        (copy(StreamKind::Compute), 2.0),
    ];
    let parts = simulate(&[calls(0, &first, 0.0), calls(1, &second, 0.0)]).unwrap();
    // The second rank gets a tensor every 4 seconds and works for 2.
    assert!(close(parts[0].seconds(), 4.0), "{parts:?}");
    assert!(close(parts[1].seconds(), 4.0) && close(parts[1].idle(Idle::Pipeline), 2.0), "{parts:?}");
    // A message that nobody sends blocks nothing forever.
    let parts = simulate(&[calls(0, &first, 0.0), calls(1, &first, 0.0)]).unwrap();
    assert!(close(parts[0].seconds(), 4.0), "{parts:?}");
}

/// Checks repeated calls that are extrapolated, with either the device or the host as the bottleneck.
#[test]
fn repeated_calls_take_their_time_again() {
    use StreamKind::{Compute, Reduce};
    let work = [
        (LoggedCall::Section("forward"), 0.0),
        (copy(Compute), 2.0),
        (LoggedCall::Section("backward"), 0.0),
        (LoggedCall::Record(Reduce), 0.0),
        (LoggedCall::Wait { stream: Compute, event: event(Reduce) }, 0.0),
        (copy(Compute), 3.0),
        (copy(Reduce), 4.0),
    ];
    for host in [0.0, 0.5, 1.0, 3.0] {
        for times in [1, 3, 1000] {
            let repeated = repeated(0, &work, host, vec![RepeatedCalls { calls: 0..2, times }]);
            let all: Vec<_> =
                (0..times).flat_map(|_| work[..2].iter().cloned()).chain(work.clone()).collect();
            let [repeated, all] = [repeated, calls(0, &all, host)].map(|calls| simulate(&[calls]).unwrap());
            assert!(close(repeated[0].seconds(), all[0].seconds()), "{host} {times} {repeated:?} {all:?}");
            assert!(close(repeated[0].section("forward"), 2.0 * (times + 1) as f64), "{repeated:?}");
        }
    }
}

#[test]
fn pipelines_with_very_many_calls_are_not_simulated() {
    let mut all = [0, 1].map(|rank| calls(rank, &[(copy(StreamKind::Compute), 1.0)], 0.0));
    assert!(simulate(&all).is_some());
    all[0].stretches[0].times = usize::MAX;
    assert!(simulate(&all).is_none());
}

#[test]
fn calls_between_ranks_slow_compute_beside_them() {
    use StreamKind::{Compute, Reduce};
    let made = [
        (copy(Compute), 1.0),
        (LoggedCall::Record(Compute), 0.0),
        (LoggedCall::Wait { stream: Reduce, event: event(Compute) }, 0.0),
        (copy(Reduce), 2.0),
        (copy(Compute), 1.0),
        (copy(Compute), 4.0),
        // The sum has already ended.
        (copy(Compute), 1.0),
    ];
    let seconds = |compute_speed| {
        let mut calls = calls(0, &made, 0.0);
        calls.calls[3].compute_speed = compute_speed;
        simulate(&[calls]).unwrap()[0].seconds()
    };
    // A call of 2 takes 0, 1 and 1.5 of the compute beside it.
    for (speed, expected) in [(1.0, 7.0), (0.5, 8.0), (0.25, 8.5)] {
        assert!(close(seconds(speed), expected), "{speed}: {}", seconds(speed));
    }
}
