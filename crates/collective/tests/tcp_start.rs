//! Ranks that cannot start over TCP, because they differ, are missing, or meet strangers: each gets one
//! sentence.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::common::STREAM;
use crate::common::tcp::{free_port, member, on_threads};
use collective::Collective;
use collective::tcp::{Member, Secret, StartError};

/// A case: name, ranks, words of each rank's message, and each rank's exit status.
type Case = (&'static str, Vec<Member>, [&'static [&'static str]; 3], [u8; 3]);
/// A program that listens instead of rank 0: its action on a connection, if any; whether it keeps the
/// connection; exit status and words of the rank that connects to it.
type Program = (Option<fn(&mut TcpStream)>, bool, u8, &'static str);

/// Time in which the jobs of a table must start, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(4);

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.as_bytes()).unwrap())
}

/// Starts the members, and returns each rank's exit status and message.
fn refused(members: Vec<Member>) -> Vec<(u8, String)> {
    on_threads(members, LIMIT, |started| match started.err() {
        Some(StartError::Refused(text)) => (2, text),
        Some(error) => (1, error.to_string()),
        None => (0, "it started".to_owned()),
    })
}

#[test]
fn ranks_that_differ_get_one_sentence_each() {
    const KEY: &str = "0123456789abcdef";
    const MISSING: &str = "rank 2 did not connect to rank 0 on ";
    const OTHER_SECRET: &str = "a connection from 127.0.0.1 was refused: it has another PLIMSOLL_SECRET";
    let change = |change: fn(&mut Member)| {
        let port = free_port();
        let mut members: Vec<_> = (0..3).map(|rank| member(rank, 3, port)).collect();
        change(&mut members[2]);
        members
    };
    let with_secrets = |secrets: [Option<Secret>; 3]| {
        let members = change(|_| ()).into_iter().zip(secrets);
        members.map(|(member, secret)| Member { secret, ..member }).collect::<Vec<_>>()
    };
    let table: [Case; 6] = [
        (
            "version",
            change(|rank| rank.version = "2.0".to_owned()),
            [&["rank 2 on ", " is Plimsoll 2.0, and rank 0 is 1.0"]; 3],
            [2; 3],
        ),
        (
            "world size",
            change(|rank| rank.world_size = 4),
            [&["rank 2 on ", " was started with WORLD_SIZE=4, and rank 0 with 3"]; 3],
            [2; 3],
        ),
        (
            "twice",
            change(|rank| rank.rank = 1),
            [&["rank 1 is there twice: process ", " on ", ", and process "]; 3],
            [2; 3],
        ),
        (
            "secret",
            with_secrets([secret(KEY), secret(KEY), secret("0123456789abcdeF")]),
            [
                &[MISSING, OTHER_SECRET],
                &[MISSING, OTHER_SECRET],
                &["rank 0 at 127.0.0.1, port ", "it has another PLIMSOLL_SECRET"],
            ],
            [1, 1, 2],
        ),
        (
            "a secret on one rank",
            with_secrets([None, None, secret(KEY)]),
            [&[MISSING, OTHER_SECRET], &[MISSING, OTHER_SECRET], &["it has another PLIMSOLL_SECRET"]],
            [1, 1, 2],
        ),
        (
            "a rank is missing",
            change(|rank| *rank = Member { rank: 7, ..rank.clone() }),
            [&[MISSING, " within 4 s"], &[MISSING, " within 4 s"], &["there is no rank 7 among 3"]],
            [1, 1, 2],
        ),
    ];
    std::thread::scope(|scope| {
        for (name, members, words, statuses) in table {
            scope.spawn(move || {
                for (rank, (status, text)) in refused(members).into_iter().enumerate() {
                    assert_eq!(status, statuses[rank], "{name}, rank {rank}: {text}");
                    assert!(!text.contains('\n'), "{name}: {text}");
                    for word in words[rank] {
                        assert!(text.contains(word), "{name}, rank {rank}: {word} is not in: {text}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_port_in_use_is_named_on_every_rank() {
    // Programs that listen: one greets, one closes each connection, and one is silent.
    let greet = |stream: &mut TcpStream| stream.write_all(b"SSH-2.0-OpenSSH_9.2").unwrap();
    let serve: [Program; 3] = [
        (Some(greet), true, 2, "another program listens at 127.0.0.1:"),
        // The program closes the connection, or the system resets it.
        (Some(|_| ()), false, 1, " did not answer within 4 s: "),
        (None, true, 1, " did not answer within 4 s: what listens there does not answer as Plimsoll does"),
    ];
    for (greet, keeps, status, words) in serve {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        if let Some(greet) = greet {
            std::thread::spawn(move || {
                let mut streams = Vec::new();
                for mut stream in listener.incoming().map(Result::unwrap) {
                    greet(&mut stream);
                    streams.extend(keeps.then_some(stream));
                }
            });
        } else {
            std::mem::forget(listener);
        }
        let errors = refused(vec![member(0, 2, port), member(1, 2, port)]);
        let in_use = format!("port {port} of this host is in use by another program: choose another port");
        assert_eq!(errors[0], (2, in_use));
        assert!(errors[1].0 == status && errors[1].1.contains(words), "{errors:?}");
    }
}

#[test]
fn a_rank_that_is_alone_says_who_is_missing() {
    let port = free_port();
    let errors = refused(vec![member(0, 3, port)]);
    let words = "ranks 1, 2 did not connect to rank 0 on ";
    assert!(errors[0].0 == 1 && errors[0].1.contains(words), "{errors:?}");
    let errors = refused(vec![member(1, 2, free_port())]);
    let words = "did not answer within 4 s: Connection refused";
    assert!(errors[0].0 == 1 && errors[0].1.contains(words), "{errors:?}");
}

/// Without a secret, ranks accept nothing from other hosts and send nothing to them.
#[test]
fn other_hosts_need_a_secret() {
    let with = |rank: usize, address: &str| Member { address: address.to_owned(), ..member(rank, 2, 1) };
    for (status, text) in refused(vec![with(0, "192.0.2.1"), with(1, "192.0.2.1")]) {
        let words = "MASTER_ADDR=192.0.2.1 can be reached from other hosts, and PLIMSOLL_SECRET is not set";
        assert!(status == 2 && text.contains(words), "{text}");
    }
    // A name with another address besides this host's.
    for (status, text) in refused(vec![with(1, "name.invalid")]) {
        assert!(
            status == 1 && text.contains("the address name.invalid of rank 0 was not found within 4 s"),
            "{text}"
        );
    }
    // All ranks are on one host, so its name is not used.
    let port = free_port();
    let here = |rank| Member { local_size: Some(2), port, ..with(rank, "192.0.2.1") };
    let ranks = on_threads(vec![here(0), here(1)], LIMIT, |started| {
        let (world, communicator) = started.unwrap();
        drop(communicator);
        world.finish().unwrap();
    });
    assert_eq!(ranks.len(), 2);
}

/// Strangers that connect to rank 0 while the job starts, with and without a secret.
#[test]
fn strangers_do_not_disturb_the_start() {
    for secret in [None, secret("0123456789abcdef")] {
        let port = free_port();
        let members = (0..3).map(|rank| Member { secret: secret.clone(), ..member(rank, 3, port) });
        let strangers = std::thread::spawn(move || {
            let mut streams = Vec::new();
            let magic = b"plimsoll\x01\0\0\0";
            let greeting = [&magic[..], &[7; 32]].concat();
            let proofless = [&greeting[..], &[0xff; 64]].concat();
            for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[], magic, &greeting, &proofless, &[0; 4096]] {
                for _ in 0..30 {
                    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                        // The other end may have closed the connection.
                        let _ = stream.write_all(bytes);
                        streams.push(stream);
                    }
                }
            }
        });
        let ranks = on_threads(members.collect(), Duration::from_secs(60), |started| {
            let (world, communicator) = started.unwrap();
            communicator.group.run(Collective::Barrier, STREAM).unwrap();
            drop(communicator);
            world.finish().unwrap();
        });
        assert_eq!(ranks.len(), 3);
        strangers.join().unwrap();
    }
}
