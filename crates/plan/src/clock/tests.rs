use super::*;
use device::{LoggedCommunication, LoggedEvent};

fn copy(stream: StreamKind) -> LoggedCall {
    LoggedCall::Copy { kind: device::CopyKind::Within, bytes: 1, stream }
}

fn calls(rank: usize, calls: &[(LoggedCall, f64)], host: f64) -> RankCalls {
    let (calls, seconds): (Vec<_>, Vec<_>) = calls.iter().cloned().unzip();
    let host = vec![host; calls.len()];
    RankCalls { rank, log: CallLog { calls, repeated: Vec::new() }, seconds, host }
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
    let parts = &simulate(&[calls(0, &work, 1.0)])[0];
    assert!(close(parts.seconds(), 5.0) && close(parts.idle(Idle::Host), 0.0), "{parts:?}");
    let parts = &simulate(&[calls(0, &work, 4.0)])[0];
    assert!(close(parts.seconds(), 8.0) && close(parts.idle(Idle::Host), 3.0), "{parts:?}");
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
    let parts = &simulate(&[calls(0, &reduction, 0.0)])[0];
    // 1 of compute, 5 of reduction beside 2 of compute, 1 of the update.
    assert!(close(parts.seconds(), 7.0) && close(parts.idle(Idle::Reduction), 3.0), "{parts:?}");
    assert!(close(parts.section("backward"), 3.0) && close(parts.section("optimizer"), 1.0), "{parts:?}");
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
    let parts = simulate(&[calls(0, &first, 0.0), calls(1, &second, 0.0)]);
    // The second rank gets a tensor every 4 seconds and works for 2.
    assert!(close(parts[0].seconds(), 4.0), "{parts:?}");
    assert!(close(parts[1].seconds(), 4.0) && close(parts[1].idle(Idle::Pipeline), 2.0), "{parts:?}");
    // A message that nobody sends holds nothing up for ever.
    let parts = simulate(&[calls(0, &first, 0.0), calls(1, &first, 0.0)]);
    assert!(close(parts[0].seconds(), 4.0), "{parts:?}");
}

#[test]
fn repeated_calls_take_their_time_again() {
    let mut work = calls(0, &[(copy(StreamKind::Compute), 2.0), (copy(StreamKind::Compute), 3.0)], 0.0);
    work.log.repeated.push(device::RepeatedCalls { calls: 0..1, times: 3 });
    assert!(close(simulate(&[work])[0].seconds(), 11.0));
}
