//! Ranks that disagree, fail, panic or fall silent: all ranks get an error with rank and reason, and none
//! hangs.

use crate::common;
use std::time::{Duration, Instant};

use crate::common::{Failed, Outcome, STREAM, buffer, cpu, filled, first_error, meta};
use collective::threads::{Cause, Options, run};
use collective::{CallKind, Channel, Collective, CollectiveError, Communicator};
use device::{DType, Device};

const PATIENT: Options = Options { timeout: Duration::from_secs(600), grace: Duration::from_secs(60) };

type Step = fn(&mut Communicator, &Device) -> Outcome<()>;

/// Bodies of ranks 0 and 1, and words that the error must contain.
const DISAGREEMENTS: [(Step, Step, [&str; 2]); 8] = [
    (
        |c, d| reduce(c, d, 8, DType::F32),
        |c, _| done(c.group.run(Collective::Barrier, STREAM)),
        ["all-reduce #1 of 8 bytes of f32", "barrier #1"],
    ),
    (|c, d| reduce(c, d, 8, DType::F32), |c, d| reduce(c, d, 12, DType::F32), ["of 8 bytes", "of 12 bytes"]),
    (|c, d| reduce(c, d, 8, DType::F32), |c, d| reduce(c, d, 8, DType::Bf16), ["of f32", "of bf16"]),
    (
        |c, d| broadcast(c, d, 0),
        |c, d| broadcast(c, d, 1),
        ["broadcast #1 with root 0", "broadcast #1 with root 1"],
    ),
    (|c, d| send(c, d, 1, 8), |c, d| receive(c, d, 0, 4), ["send #0 of 8 bytes", "receive #0 of 4 bytes"]),
    (
        |c, d| send(c, d, 1, 8),
        |c, _| done(c.group.run(Collective::Barrier, STREAM)),
        ["send #0", "barrier #1"],
    ),
    (
        |c, _| done(c.control.barrier()),
        |c, _| done(c.control.gather(0, &[])),
        ["control barrier #0", "control gather #0"],
    ),
    (
        |c, _| done(c.group.split(&[vec![0, 1]])),
        |c, _| done(c.group.split(&[vec![0], vec![1]])),
        ["[[0, 1]]", "[[0], [1]]"],
    ),
];

fn done<T>(result: Result<T, CollectiveError>) -> Outcome<()> {
    result.map(drop).map_err(Failed::from)
}

fn declare(c: &mut Communicator, reason: &str) -> Outcome<()> {
    c.control.fail(reason);
    Ok(())
}

fn reduce(c: &mut Communicator, device: &Device, bytes: usize, dtype: DType) -> Outcome<()> {
    done(c.group.run(Collective::AllReduce { region: buffer(device, bytes).region(0, bytes), dtype }, STREAM))
}

fn broadcast(c: &mut Communicator, device: &Device, root: usize) -> Outcome<()> {
    done(c.group.run(Collective::Broadcast { root, region: buffer(device, 8).region(0, 8) }, STREAM))
}

fn send(c: &mut Communicator, device: &Device, to: usize, bytes: usize) -> Outcome<()> {
    c.group.run(Collective::Send { to, region: buffer(device, bytes).region(0, bytes) }, STREAM)?;
    // A send may return before it is received; the rank stays, so that the peer sees the message and not its
    // end.
    done(c.control.barrier())
}

fn receive(c: &mut Communicator, device: &Device, from: usize, bytes: usize) -> Outcome<()> {
    done(c.group.run(Collective::Receive { from, region: buffer(device, bytes).region(0, bytes) }, STREAM))
}

#[test]
fn ranks_that_disagree_are_named() {
    for (index, (zero, one, words)) in DISAGREEMENTS.into_iter().enumerate() {
        for device in [cpu, meta] {
            let outcome = run(2, PATIENT, move |mut c| {
                let device = device(c.rank());
                c.group.run(Collective::Barrier, STREAM)?;
                if c.rank() == 0 { zero(&mut c, &device) } else { one(&mut c, &device) }
            });
            let (_, text) = first_error(outcome);
            for word in words.iter().chain(&["rank 0", "rank 1"]) {
                assert!(text.contains(word), "case {index}: {word} is not in: {text}");
            }
        }
        if words[0].starts_with("broadcast") {
            // Both roots only send, so processes notice in their next call.
            continue;
        }
        // Either rank may notice first; the other gets its reason.
        let outcomes = common::tcp::run_over_tcp(2, Duration::from_secs(3), |c, device| {
            c.group.run(Collective::Barrier, STREAM)?;
            if c.rank() == 0 { zero(c, device) } else { one(c, device) }
        });
        let errors: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
        assert!(!errors.is_empty(), "case {index}");
        for word in words {
            // The first call of the control channel has exchanged the identities of the processes.
            let word = if word.starts_with("control") { &*word.replace("#0", "#1") } else { word };
            let all = errors.iter().all(|text| text.contains(word));
            assert!(all, "case {index} over TCP: {word} is not in: {errors:?}");
        }
    }
}

#[test]
fn a_failure_ends_pending_and_later_calls_of_all() {
    let ends: [(Step, &str); 3] = [
        (|_, _| Err(Failed::Other("disk full".into())), "disk full"),
        (|_, _| panic!("index 7 of {}", 7), "index 7 of 7"),
        (|c, _| declare(c, "corpus unreadable"), "corpus unreadable"),
    ];
    for (end, reason) in ends {
        let begin = Instant::now();
        let (sender, received) = std::sync::mpsc::channel();
        let outcome = run(4, PATIENT, move |mut c| -> Outcome<()> {
            let device = cpu(c.rank());
            if c.rank() == 2 {
                std::thread::sleep(Duration::from_millis(20));
                return end(&mut c, &device);
            }
            let pending = if c.rank() == 0 {
                c.control.barrier().err()
            } else {
                c.group.run(Collective::Barrier, STREAM).err()
            };
            let later = [
                c.control.all_gather(b"x").err(),
                c.group
                    .run(
                        Collective::Send {
                            to: if c.rank() == 0 { 1 } else { 0 },
                            region: buffer(&device, 4).region(0, 4),
                        },
                        STREAM,
                    )
                    .err(),
                c.group.synchronize(STREAM).err(),
            ];
            assert_eq!(c.control.watch().failure().unwrap().rank, 2);
            for error in later.into_iter().chain([pending]) {
                let _ = sender.send((c.rank(), error.unwrap()));
            }
            Ok(())
        });
        let error = outcome.unwrap_err();
        assert_eq!(error.rank, 2);
        assert!(error.cause.to_string().ends_with(reason), "{error}");
        assert!(error.abandoned.is_empty());
        let received: Vec<_> = received.iter().collect();
        assert_eq!(received.len(), 12);
        for (who, error) in received {
            let CollectiveError::PeerFailed { rank, peer: 2, reason: printed, .. } = &error else {
                panic!("{error}")
            };
            assert!(*rank == who && printed.contains(reason), "{error}");
        }
        // The ranks were woken before the timeout.
        assert!(begin.elapsed() < PATIENT.timeout, "took {:?}", begin.elapsed());
    }
}

#[test]
fn a_silent_rank_is_a_timeout_that_names_it() {
    let options = Options { timeout: Duration::from_secs(5), grace: Duration::from_secs(3) };
    let begin = Instant::now();
    let outcome = run(4, options, |c| -> Outcome<()> {
        c.group.run(Collective::Barrier, STREAM)?;
        if c.rank() == 2 {
            std::thread::sleep(Duration::from_secs(3600));
        }
        done(c.group.run(Collective::Barrier, STREAM))
    });
    let error = outcome.unwrap_err();
    let Cause::Error(Failed::Collective(CollectiveError::Timeout { peer, call, .. })) = &error.cause else {
        panic!("{error}")
    };
    assert_eq!((*peer, call.channel, call.kind, call.sequence), (2, Channel::Data, CallKind::Barrier, 1));
    assert_eq!(error.abandoned, [2]);
    assert!(begin.elapsed() < Duration::from_secs(1800), "took {:?}", begin.elapsed());
}

#[test]
fn a_peer_that_receives_nothing_is_a_timeout() {
    let options = Options { timeout: Duration::from_millis(100), grace: Duration::from_secs(5) };
    let outcome = run(2, options, |c| -> Outcome<()> {
        let device = cpu(c.rank());
        let large = buffer(&device, 16 << 20);
        let peer = 1 - c.rank();
        done(c.group.run(Collective::Send { to: peer, region: large.region(0, 16 << 20) }, STREAM))
    });
    let (_, text) = first_error(outcome);
    assert!(text.contains("send #0") && text.contains("did not answer within 0.1 s"), "{text}");
}

/// The sender waits longer than the timeout in total, but sees progress in time.
#[test]
fn slow_progress_is_no_timeout() {
    const BYTES: usize = 8 << 20;
    let options = Options { timeout: Duration::from_secs(6), grace: Duration::from_secs(1) };
    let outcome = run(3, options, move |c| -> Outcome<()> {
        let device = cpu(c.rank());
        let large = buffer(&device, BYTES);
        let region = large.region(0, BYTES);
        if c.rank() == 0 {
            let begin = Instant::now();
            c.group.run(
                Collective::Exchange { sends: vec![(1, region), (2, region)], receives: Vec::new() },
                STREAM,
            )?;
            assert!(begin.elapsed() > options.timeout);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(3200 * c.rank() as u64));
        done(c.group.run(Collective::Receive { from: 0, region }, STREAM))
    });
    outcome.unwrap();
}

#[test]
fn a_rank_that_ends_early_is_named() {
    let outcome = run(3, PATIENT, |c| -> Outcome<()> {
        if c.rank() == 1 { Ok(()) } else { done(c.group.run(Collective::Barrier, STREAM)) }
    });
    let (_, text) = first_error(outcome);
    assert!(text.contains("barrier #0: rank 1 failed: it ended without making this call"), "{text}");
}

#[test]
fn errors_in_a_group_name_ranks_of_the_world() {
    let outcome = run(4, PATIENT, |c| -> Outcome<()> {
        let device = cpu(c.rank());
        let group = c.group.split(&[vec![0, 1], vec![2, 3]])?;
        let bytes = if c.rank() == 3 { 8 } else { 4 };
        done(group.run(
            Collective::AllReduce { region: buffer(&device, bytes).region(0, bytes), dtype: DType::F32 },
            STREAM,
        ))
    });
    let (_, text) = first_error(outcome);
    assert!(text.contains("rank 2") && text.contains("rank 3"), "{text}");
}

#[test]
fn all_transports_refuse_the_same_operands() {
    let cases: [(Step, &str); 9] = [
        (|c, d| reduce(c, d, 8, DType::U32), "u32 cannot be summed"),
        (|c, d| reduce(c, d, 6, DType::F32), "6 bytes from byte 0 are not whole elements of 4 bytes"),
        (|c, d| broadcast(c, d, 2), "there is no rank 2 among 2"),
        (|c, d| receive(c, d, 0, 4), "rank 0 of the group is the caller itself"),
        (|c, d| receive(c, d, 9, 4), "there is no rank 9 among 2"),
        (|c, d| receive(c, d, 1, 3), "3 bytes from byte 0 are not whole elements of 2 bytes"),
        (
            |c, d| {
                done(c.group.run(
                    Collective::AllGather {
                        input: buffer(d, 4).region(0, 4),
                        output: buffer(d, 12).region(0, 12),
                    },
                    STREAM,
                ))
            },
            "12 bytes are not 2 times 4 bytes",
        ),
        (
            |c, d| {
                done(
                    c.group.run(Collective::Broadcast { root: 0, region: buffer(d, 4).region(2, 4) }, STREAM),
                )
            },
            "4 bytes from byte 2 are not inside a buffer of 4 bytes",
        ),
        (|c, _| done(c.group.split(&[vec![0], vec![0, 1]])), "rank 0 is in two groups"),
    ];
    for (case, text) in cases {
        let counted = case(&mut Communicator::counted(0, 2), &meta(0)).unwrap_err().to_string();
        assert!(counted.ends_with(text), "{counted}");
        let outcome =
            run(2, PATIENT, move |mut c| if c.rank() == 0 { case(&mut c, &cpu(0)) } else { Ok(()) });
        let (rank, threads) = first_error(outcome);
        assert_eq!(rank, 0);
        assert!(threads.ends_with(text), "{threads}");
    }
}

#[test]
fn receives_must_not_overlap_other_regions() {
    let solo = Communicator::counted(0, 2);
    let both = filled(&cpu(0), &[0.0f32; 4]);
    let left = both.region(0, 8);
    let overlapping = both.region(4, 8);
    let right = both.region(8, 8);
    solo.group
        .run(Collective::Exchange { sends: vec![(1, left)], receives: vec![(1, right)] }, STREAM)
        .unwrap();
    solo.group
        .run(Collective::Exchange { sends: vec![(1, left), (1, overlapping)], receives: Vec::new() }, STREAM)
        .unwrap();
    assert!(
        solo.group
            .run(Collective::Exchange { sends: vec![(1, left)], receives: vec![(1, overlapping)] }, STREAM)
            .is_err()
    );
    assert!(
        solo.group
            .run(
                Collective::Exchange { sends: Vec::new(), receives: vec![(1, right), (1, overlapping)] },
                STREAM
            )
            .is_err()
    );
    // Every three regions of 2 to 6 bytes, each sent or received, compared with the pairwise definition of
    // overlap.
    let spans: Vec<(usize, usize)> = (0..4).flat_map(|at| (1..4).map(move |n| (2 * at, 2 * n))).collect();
    let whole = filled(&cpu(0), &[0.0f32; 4]);
    for code in 0..spans.len().pow(3) * 8 {
        let received = code % 8;
        let mut code = code / 8;
        let three = [(); 3].map(|()| {
            let span = spans[code % spans.len()];
            code /= spans.len();
            span
        });
        let is_received = |index: usize| received >> index & 1 == 1;
        let regions_where = |wanted: bool| -> Vec<_> {
            let picked = (0..3).filter(|index| is_received(*index) == wanted);
            picked.map(|index| (1, whole.region(three[index].0, three[index].1))).collect()
        };
        let over = |a: usize, b: usize| {
            let ((a_at, a_bytes), (b_at, b_bytes)) = (three[a], three[b]);
            (is_received(a) || is_received(b)) && a_at < b_at + b_bytes && b_at < a_at + a_bytes
        };
        let expected = !(over(0, 1) || over(0, 2) || over(1, 2));
        let allowed = solo
            .group
            .run(Collective::Exchange { sends: regions_where(false), receives: regions_where(true) }, STREAM)
            .is_ok();
        assert_eq!(allowed, expected, "{three:?}, received {received:03b}");
    }
}
