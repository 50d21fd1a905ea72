//! Processes that fail, are killed or stopped, or disagree: the others report which one and why, and end.

use crate::common;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::{Failed, Outcome, STREAM, buffer, cpu};
use collective::{Collective, Communicator, World};
use device::DType;

const RANKS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a job may take even on a busy machine; a job that hangs takes longer.
const LIMIT: Duration = Duration::from_secs(120);

type Act = fn(&World, &mut Communicator) -> Outcome<()>;

/// A scenario: its name, what rank 2 does while the others wait for it in the process group's barrier #1, and
/// words that every survivor's error contains.
const SCENARIOS: [(&str, Act, &[&str]); 6] = [
    ("fail", |world, _| fail(world), &["barrier #1: rank 2 failed: disk full"]),
    (
        "kill",
        |_, _| signal("KILL"),
        &["barrier #1: rank 2 failed: its process", "has ended without a message"],
    ),
    // The first rank to notice reports it itself; the others quote that rank's report.
    ("stop", |_, _| signal("STOP"), &["barrier #1: rank 2", "did not answer", "within 5.0 s"]),
    ("end", |_, _| Ok(()), &["barrier #1: rank 2 failed: it ended without making this call"]),
    (
        "size",
        |_, communicator| reduce(communicator, 12),
        &["is in", "all-reduce #1 of 8 bytes of f32", "all-reduce #1 of 12 bytes of f32"],
    ),
    (
        "call",
        |_, communicator| Ok(communicator.group.run(Collective::Barrier, STREAM)?),
        &["all-reduce #1", "barrier #1"],
    ),
];

fn fail(world: &World) -> Outcome<()> {
    world.fail("disk full");
    Ok(())
}

fn signal(name: &str) -> Outcome<()> {
    let sent = Command::new("kill").args([&format!("-{name}"), &std::process::id().to_string()]).status();
    // The signal may reach another thread first, and this one a moment later.
    std::thread::sleep(Duration::from_millis(500));
    sent.map(drop).map_err(|error| Failed::Other(error.to_string()))
}

fn reduce(communicator: &mut Communicator, bytes: usize) -> Outcome<()> {
    let device = cpu(communicator.rank());
    Ok(communicator.group.run(
        Collective::AllReduce { region: buffer(&device, bytes).region(0, bytes), dtype: DType::F32 },
        STREAM,
    )?)
}

#[test]
fn survivors_name_the_rank_that_is_lost() {
    for (name, _, words) in SCENARIOS {
        let over_tcp = || Some(common::tcp::launched(RANKS, "process_failure::one_rank", name));
        let over_mpi = || {
            cfg!(feature = "mpi")
                .then(|| common::mpi::launched(RANKS, "process_failure::one_rank", name))
                .flatten()
        };
        for launched in [&over_tcp as &dyn Fn() -> Option<Output>, &over_mpi] {
            let begin = Instant::now();
            let Some(output) = launched() else { continue };
            let text = common::mpi::text(&output);
            assert!(!output.status.success(), "{name}: {text}");
            assert!(begin.elapsed() < LIMIT, "{name} took {:?}: {text}", begin.elapsed());
            let printed: Vec<_> = text.lines().filter(|line| line.contains("survivor ")).collect();
            assert!(!printed.is_empty(), "{name}: {text}");
            for word in words {
                assert!(printed.iter().all(|line| line.contains(word)), "{name}: {word} is not in: {text}");
            }
        }
    }
}

#[cfg(feature = "mpi")]
fn join_mpi() -> (World, Communicator) {
    collective::mpi::start(LIMIT).unwrap()
}

#[cfg(not(feature = "mpi"))]
fn join_mpi() -> (World, Communicator) {
    panic!("this build has no MPI")
}

#[test]
#[ignore = "one process of a job that another test starts"]
fn one_rank() {
    let scenario = std::env::var(common::mpi::SCENARIO).unwrap();
    let (_, rank_two, words) = SCENARIOS.into_iter().find(|(name, ..)| *name == scenario).unwrap();
    let is_over_tcp = std::env::var_os("MASTER_PORT").is_some();
    let (world, mut communicator) = if is_over_tcp { common::tcp::join(LIMIT) } else { join_mpi() };
    world.set_timeout(TIMEOUT);
    communicator.group.run(Collective::Barrier, STREAM).unwrap();
    let outcome = if world.rank() == 2 {
        // The other ranks must have passed the barrier as well, even on a busy machine.
        std::thread::sleep(Duration::from_secs(1));
        rank_two(&world, &mut communicator)
    } else if words.concat().contains("all-reduce") {
        reduce(&mut communicator, 8)
    } else {
        communicator.group.run(Collective::Barrier, STREAM).map_err(Into::into)
    };
    if let Err(error) = &outcome {
        println!("survivor {}: {error}", world.rank());
        world.fail(&error.to_string());
        system::exit::exit(1);
    }
    drop(communicator);
    // Rank 2 reaches its end and learns that the others did not.
    let failure = world.finish().unwrap_err();
    println!("rank 2 learned of {}: {}", failure.rank, failure.reason);
    system::exit::exit(1);
}
