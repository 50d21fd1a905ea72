//! NCCL calls that do not return, and the events that end the wait for them.
#![allow(clippy::unwrap_used)]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{ThreadId, current, sleep};

use super::*;

const CALL: Call = Call { channel: Channel::Data, kind: CallKind::Barrier, sequence: 7 };
const LONG: Duration = Duration::from_secs(60);

/// Creates the state of rank 1 of 2; rank 0 fails after `failing`.
fn shared(timeout: Duration, failing: Option<Duration>) -> Shared {
    let began = Instant::now();
    let failure = move || {
        failing.filter(|after| began.elapsed() >= *after)?;
        Some(Failure { rank: 0, reason: "disk full".to_owned() })
    };
    Shared::new(1, 2, timeout, Watch::new(failure), CallThread::start().unwrap())
}

/// Returns a call that waits for `released`, as an NCCL call waits for a missing rank.
fn stuck() -> (Sender<()>, impl FnOnce() -> fault::Result<()> + Send + 'static) {
    let (release, released): (Sender<()>, Receiver<()>) = channel();
    let wait = move || {
        let _ = released.recv();
        Ok(())
    };
    (release, wait)
}

#[test]
fn one_thread_makes_calls_in_order() {
    let shared = shared(LONG, None);
    let (say, message) = channel::<(usize, ThreadId)>();
    for number in 0..1000 {
        // Some calls find the thread asleep.
        if number % 250 == 0 {
            sleep(Duration::from_millis(2));
        }
        let say = say.clone();
        let body = move || {
            say.send((number, current().id())).unwrap();
            Ok(())
        };
        shared.have_made(CALL, body).unwrap();
        let (actual, by) = message.try_recv().unwrap();
        assert_eq!(actual, number);
        assert_ne!(by, current().id());
    }
}

#[test]
fn a_call_that_does_not_return_ends_at_the_deadline() {
    let shared = shared(Duration::from_millis(200), None);
    shared.begins(CALL, &[0].into());
    let (release, wait) = stuck();
    let began = Instant::now();
    let error = shared.have_made(CALL, wait).unwrap_err();
    assert!(matches!(error, CollectiveError::Timeout { rank: 1, peer: 0, call: CALL, .. }), "{error}");
    assert!(began.elapsed().as_millis() >= 200, "{:?}", began.elapsed());
    // Later calls fail as well, without waiting for the thread.
    assert_eq!(shared.alive(CALL).unwrap_err().to_string(), error.to_string());
    drop(shared);
    drop(release);
}

#[test]
fn calls_that_connect_have_a_later_deadline() {
    let shared = shared(Duration::from_millis(50), None);
    let slow = || {
        sleep(Duration::from_millis(300));
        Ok(())
    };
    shared.patiently(|| shared.have_made(CALL, slow)).unwrap();
    assert!(shared.have_made(CALL, slow).is_err());
}

#[test]
fn a_failing_rank_ends_the_wait_for_a_call() {
    let shared = shared(LONG, Some(Duration::from_millis(100)));
    let (_release, wait) = stuck();
    let error = shared.patiently(|| shared.have_made(CALL, wait)).unwrap_err();
    assert_eq!(
        error.to_string(),
        CollectiveError::failed(1, CALL, shared.watch.failure().unwrap()).to_string()
    );
}

#[test]
fn nccl_errors_are_reported_unless_a_rank_caused_them() {
    let fault = || Err(Fault { code: 6, text: "remote process exited".to_owned() });
    let message = |failing| shared(LONG, failing).have_made(CALL, fault).unwrap_err().to_string();
    let alone = message(None);
    assert!(alone.contains("barrier #7: NCCL error 6: remote process exited"), "{alone}");
    let behind = message(Some(Duration::from_millis(50)));
    assert!(behind.contains("rank 0 failed: disk full"), "{behind}");
}
