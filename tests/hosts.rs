//! Tests of ranks on two simulated hosts: their devices, their results, and the report of a lost rank.

use std::process::Command;
use std::time::Duration;

use system::skipped::{self, Need};

use crate::common::jobs::{
    Running, Transport, arguments, is_alive, launcher, outcome, signal, train, two_hosts, workplace,
};
use crate::common::program;

#[test]
fn two_hosts_give_the_bits_of_one() {
    let there = workplace();
    let Some(mut command) = two_hosts(there.path(), 2) else { return };
    command.args(arguments(4, &[]));
    let (computed, hosts) = outcome(command, there.path());
    assert_eq!(hosts, ["first", "first", "second", "second"]);
    let here = workplace();
    assert_eq!(computed, outcome(train(Transport::Threads, here.path(), 4, &[]), here.path()).0);
    for (rank, host) in hosts.iter().enumerate() {
        let log = std::fs::read_to_string(there.path().join(format!("out/logs/rank-{rank}.log"))).unwrap();
        assert!(log.contains(&format!("rank {rank} of 4 on {host}")), "{log}");
    }
}

#[test]
fn a_rank_killed_on_another_host_is_named() {
    let directory = workplace();
    let Some(mut command) = two_hosts(directory.path(), 2) else { return };
    command.args(arguments(4, &["train.steps=1000000"]));
    let running = Running::wait(command, directory.path());
    let pids: Vec<u32> = (0..4).map(|rank| running.pid(rank)).collect();
    let run_dir = running.run_dir.clone();
    signal("KILL", pids[3]);
    let output = running.end(Duration::from_secs(120));
    assert_ne!(output.status.code(), Some(0));
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "a rank is left");
    let report = std::fs::read_to_string(run_dir.join("logs/failure.txt")).unwrap();
    assert!(report.contains("rank 3 on second"), "{report}");
}

/// Checks that the network between hosts is added to the description of one of them.
#[test]
fn the_network_between_hosts_is_added_to_a_description() {
    let directory = workplace();
    let description = directory.path().join("device.toml");
    std::fs::write(&description, include_str!("../launch/devices/h200.toml")).unwrap();
    let describe = |mut command: Command, file: &[&str]| {
        let output = command.args(["plan", "--describe"]).args(file).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let refused = |command: Command, file: &[&str], reason: &str| {
        let (status, message) = describe(command, file);
        let own: Vec<_> = message.lines().filter(|line| line.starts_with("plimsoll: ")).collect();
        assert!(status == Some(2) && own.len() == 1 && own[0].contains(reason), "{file:?}: {message}");
    };
    let mut alone = launcher(Transport::Mpi, directory.path(), 2);
    alone.arg(program());
    refused(alone, &["device.toml"], "all processes of the job are on one host");
    for (file, reason) in [
        (&[][..], "name the file of a host's description, to which the network is added: write it first"),
        (&["none.toml"], "none.toml cannot be read"),
    ] {
        let Some(command) = two_hosts(directory.path(), 1) else { return };
        refused(command, file, reason);
    }
    let gpus = device::cuda::availability().map_or(0, |gpus| gpus.len());
    if gpus < 2 || !collective::nccl::is_there() {
        skipped::report(Need::Gpu, &format!("{gpus} GPUs, NCCL {}", collective::nccl::is_there()));
        return;
    }
    let Some(mut command) = two_hosts(directory.path(), 1) else { return };
    command.env("GPUS_first", "0").env("GPUS_second", "1").env("NCCL_SOCKET_IFNAME", "lo");
    let (status, message) = describe(command, &["device.toml"]);
    assert_eq!(status, Some(0), "{message}");
    let written = plan::PlanDevice::load(&description).unwrap();
    let network = written.network.as_ref().unwrap();
    assert!(
        network.assumed.is_empty() && network.seconds.is_some_and(|seconds| seconds > 1e-6),
        "{network:?}"
    );
    let far = written
        .times
        .iter()
        .flat_map(|calls| &calls.samples)
        .filter(|[hosts, on_host, ..]| (*hosts, *on_host) == (2.0, 1.0));
    assert!(far.count() >= 24);
}

/// Checks that with half of the GPUs on each host, every rank uses its host's GPU with its local rank, and
/// NCCL uses a network.
#[test]
fn ranks_use_the_gpus_of_their_host() {
    let gpus = device::cuda::availability().map_or(0, |gpus| gpus.len());
    if gpus < 2 || !collective::nccl::is_there() {
        skipped::report(Need::Gpu, &format!("{gpus} GPUs, NCCL {}", collective::nccl::is_there()));
        return;
    }
    let ranks = if gpus < 4 { 1 } else { 2 };
    let there = workplace();
    let Some(mut command) = two_hosts(there.path(), ranks) else { return };
    let list = |first: usize| (first..first + ranks).map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(",");
    command.env("GPUS_first", list(0)).env("GPUS_second", list(ranks)).env("NCCL_SOCKET_IFNAME", "lo");
    command.args(arguments(2 * ranks, &["precision.compute=bf16"])).args(["--device", "cuda"]);
    let (computed, hosts) = outcome(command, there.path());
    assert_eq!(hosts.iter().filter(|host| *host == "first").count(), ranks);
    let here = workplace();
    let mut command = train(Transport::Threads, here.path(), 2 * ranks, &["precision.compute=bf16"]);
    command.env_remove("CUDA_VISIBLE_DEVICES").args(["--device", "cuda"]);
    assert_eq!(computed, outcome(command, here.path()).0);
}
