//! Worlds connected over TCP: threads of this process, or processes of this test program.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use collective::tcp::{Member, StartError, start};
use collective::{Communicator, World};
use device::Device;

use super::mpi::SCENARIO;
pub(crate) use super::ports::free_port;
use super::{Outcome, cpu};

/// Time that a job of processes may take even on a busy machine; a job that hangs takes longer.
const LIMIT: Duration = Duration::from_secs(300);

/// A rank of a job on this host.
pub(crate) fn member(rank: usize, world_size: usize, port: u16) -> Member {
    Member {
        rank,
        world_size,
        local_rank: None,
        local_size: None,
        address: "127.0.0.1".to_owned(),
        port,
        secret: None,
        version: "1.0".to_owned(),
    }
}

/// Starts every member on a thread, and returns the result of `body` on each.
pub(crate) fn on_threads<T: Send>(
    members: Vec<Member>,
    timeout: Duration,
    body: impl Fn(Result<(World, Communicator), StartError>) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            members.into_iter().map(|member| scope.spawn(move || body(start(&member, timeout)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs a body as every rank of a world of threads. A rank whose body fails announces it, which ends all
/// others.
pub(crate) fn run_over_tcp<T: Send>(
    world_size: usize,
    timeout: Duration,
    body: impl Fn(&mut Communicator, &Device) -> Outcome<T> + Send + Sync,
) -> Vec<Result<T, String>> {
    let port = free_port();
    let members = (0..world_size).map(|rank| member(rank, world_size, port)).collect();
    on_threads(members, Duration::from_secs(60), |started| {
        let (world, mut communicator) = started.map_err(|error| error.to_string())?;
        world.set_timeout(timeout);
        let ran = body(&mut communicator, &cpu(world.rank())).map_err(|error| error.to_string());
        drop(communicator);
        match ran {
            Ok(value) => world.finish().map(|()| value).map_err(|failure| failure.reason),
            Err(error) => {
                world.fail(&error);
                Err(error)
            }
        }
    })
}

/// Runs the ignored test `test` of this program as every rank of a job, with a launcher's variables. Like a
/// launcher, it kills the other ranks some time after one has failed. Returns the output of all ranks, and
/// the status of the first that failed.
pub(crate) fn launched(ranks: usize, test: &str, scenario: &str) -> Output {
    let port = free_port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(SCENARIO, scenario).env("MASTER_PORT", port.to_string());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..ranks).map(start).collect();
    let begun = Instant::now();
    let mut failed: Option<(Instant, ExitStatus)> = None;
    loop {
        let ended: Vec<_> = children.iter_mut().map(|child| child.try_wait().unwrap()).collect();
        if failed.is_none() {
            let failure = ended.iter().flatten().find(|status| !status.success());
            failed = failure.map(|status| (Instant::now(), *status));
        }
        if ended.iter().all(Option::is_some) {
            break;
        }
        let is_over = failed.is_some_and(|(when, _)| when.elapsed() > Duration::from_secs(20));
        if is_over || begun.elapsed() > LIMIT {
            children.iter_mut().for_each(|child| child.kill().unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let all =
        |stream: fn(&Output) -> &Vec<u8>| outputs.iter().flat_map(|output| stream(output).clone()).collect();
    let status = failed.map_or(ExitStatus::from_raw(0), |(_, status)| status);
    Output { status, stdout: all(|output| &output.stdout), stderr: all(|output| &output.stderr) }
}

/// Joins the job of [`launched`].
pub(crate) fn join(timeout: Duration) -> (World, Communicator) {
    let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let port = number("MASTER_PORT").try_into().unwrap();
    start(&member(number("RANK"), number("WORLD_SIZE"), port), timeout).unwrap()
}

/// Runs the body of a check on worlds of threads connected over TCP.
pub(crate) fn everywhere(name: &str, body: super::Check) {
    let body = Arc::new(body);
    for world_size in 2..=4 {
        for outcome in run_over_tcp(world_size, Duration::from_secs(60), |c, device| body(c, device)) {
            outcome.unwrap_or_else(|error| panic!("{name}, {world_size} ranks over TCP: {error}"));
        }
    }
}
