//! Calls that do not come back, and what ends the wait for them.
#![allow(clippy::unwrap_used)]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{ThreadId, current, sleep};

use super::*;

const CALL: Call = Call { plane: Plane::Data, operation: Operation::Barrier, sequence: 7 };
const LONG: Duration = Duration::from_secs(60);

/// Rank 1 of 2, where rank 0 fails after some time.
fn shared(timeout: Duration, failing: Option<Duration>) -> Shared {
    let began = Instant::now();
    let failure = move || {
        failing.filter(|after| began.elapsed() >= *after)?;
        Some(Failure { rank: 0, reason: "disk full".to_owned() })
    };
    Shared::new(1, 2, timeout, Watch::new(failure), CallThread::start().unwrap())
}

/// A call that waits for `released`, as one of NCCL waits for a rank that does not come.
fn stuck() -> (Sender<()>, impl FnOnce() -> fault::Result<()> + Send + 'static) {
    let (release, released): (Sender<()>, Receiver<()>) = channel();
    let wait = move || {
        let _ = released.recv();
        Ok(())
    };
    (release, wait)
}

#[test]
fn calls_are_made_in_turn_by_one_thread_and_answered() {
    let shared = shared(LONG, None);
    let (say, said) = channel::<(usize, ThreadId)>();
    for number in 0..1000 {
        // Some find the thread asleep.
        if number % 250 == 0 {
            sleep(Duration::from_millis(2));
        }
        let say = say.clone();
        let body = move || {
            say.send((number, current().id())).unwrap();
            Ok(())
        };
        shared.have_made(CALL, body).unwrap();
        let (made, by) = said.try_recv().unwrap();
        assert_eq!(made, number);
        assert_ne!(by, current().id());
    }
}

#[test]
fn a_call_that_does_not_come_back_ends_at_the_deadline() {
    let shared = shared(Duration::from_millis(200), None);
    shared.begins(CALL, &[0].into());
    let (release, wait) = stuck();
    let began = Instant::now();
    let error = shared.have_made(CALL, wait).unwrap_err();
    assert!(matches!(error, CollectiveError::Timeout { rank: 1, peer: 0, call: CALL, .. }), "{error}");
    assert!((200..5000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    // So do later ones, and nobody waits for the thread.
    assert_eq!(shared.alive(CALL).unwrap_err().to_string(), error.to_string());
    drop(shared);
    assert!(began.elapsed() < Duration::from_secs(5));
    drop(release);
}

#[test]
fn where_connections_are_made_the_deadline_is_later() {
    let shared = shared(Duration::from_millis(50), None);
    let slow = || {
        sleep(Duration::from_millis(300));
        Ok(())
    };
    shared.patiently(|| shared.have_made(CALL, slow)).unwrap();
    assert!(shared.have_made(CALL, slow).is_err());
}

#[test]
fn a_rank_that_fails_ends_the_wait_for_a_call() {
    let shared = shared(LONG, Some(Duration::from_millis(100)));
    let (_release, wait) = stuck();
    let began = Instant::now();
    let error = shared.patiently(|| shared.have_made(CALL, wait)).unwrap_err();
    assert_eq!(
        error.to_string(),
        CollectiveError::failed(1, CALL, shared.watch.failure().unwrap()).to_string()
    );
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_a_call_says_is_its_error_unless_a_rank_is_behind_it() {
    let fault = || Err(Fault { code: 6, text: "remote process exited".to_owned() });
    let said = |failing| shared(LONG, failing).have_made(CALL, fault).unwrap_err().to_string();
    let alone = said(None);
    assert!(alone.contains("barrier #7: NCCL error 6: remote process exited"), "{alone}");
    let behind = said(Some(Duration::from_millis(50)));
    assert!(behind.contains("rank 0 failed: disk full"), "{behind}");
}
