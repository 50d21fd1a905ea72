//! Chooses a device for each rank from the request and the available devices.

use collective::GridShape;
use device::Description;
use device::cuda::{self, GpuInfo};

use crate::error::{Result, RunError};
use crate::startup::Startup;
use config::RunConfig;
use worker::setup::placement::{DeviceChoice, Gpus, Placement, describe};

/// The devices chosen for a run's ranks, with the reason.
#[derive(Debug)]
pub struct ChosenPlacement {
    /// The devices.
    pub placement: Placement,
    /// A sentence that explains the choice.
    pub reason: String,
}

impl ChosenPlacement {
    /// Chooses the devices of the ranks: one GPU each, or one shared GPU if so configured. If there are fewer
    /// GPUs than configured ranks, and neither a launcher nor `--ranks` sets their number, one rank does all
    /// the work on one GPU. It uses the same lanes, so results have the same bits.
    ///
    /// # Errors
    /// The requested device is absent; there are more ranks than GPUs; ranks of several processes would share
    /// a GPU.
    pub fn find(
        choice: DeviceChoice,
        config: &mut RunConfig,
        startup: &Startup,
        ranks: Option<usize>,
    ) -> Result<Self> {
        let gpus = match choice {
            DeviceChoice::Cpu => {
                return Ok(ChosenPlacement {
                    placement: Placement::Cpu,
                    reason: "the CPU, as requested".to_owned(),
                });
            }
            DeviceChoice::Meta => {
                let reason = "Meta: memory is counted and nothing is computed".to_owned();
                return Ok(ChosenPlacement { placement: Placement::Meta(Description::host()), reason });
            }
            DeviceChoice::Auto => match cuda::availability() {
                Ok(gpus) => gpus,
                Err(why) => {
                    return Ok(ChosenPlacement {
                        placement: Placement::Cpu,
                        reason: format!("the CPU: {why}"),
                    });
                }
            },
            DeviceChoice::Cuda => cuda::availability().map_err(|why| {
                RunError::Refused(format!("--device cuda: {why}; --device cpu trains on the host"))
            })?,
        };
        let shares = config.parallel.shares_gpu();
        let asked = GpuRequest { shares, ..GpuRequest::from_startup(config.world_size(), startup, ranks) };
        let there = HostGpus {
            gpus: gpus.len(),
            shown_by_launcher: std::env::var_os("CUDA_VISIBLE_DEVICES").is_some(),
            nccl: collective::nccl::is_there(),
        };
        on_gpus(&gpus, config, startup.rank(), choose(&asked, &there)?)
    }
}

/// Request for GPUs by the ranks on this host.
#[derive(Clone, Copy, Debug)]
struct GpuRequest {
    world_size: usize,
    /// In a job: this rank's index on its host, and the number of ranks there. `None` outside a job.
    job: Option<(usize, usize)>,
    /// Whether the command line sets the number of ranks.
    threads: bool,
    /// Whether the ranks share a GPU.
    shares: bool,
}

impl GpuRequest {
    fn from_startup(world_size: usize, startup: &Startup, ranks: Option<usize>) -> Self {
        let job = startup.is_in_job().then(|| startup.local());
        GpuRequest { world_size, job, threads: ranks.is_some(), shares: false }
    }
}

/// The GPUs available on this host.
#[derive(Clone, Copy, Debug)]
struct HostGpus {
    gpus: usize,
    /// Whether the environment restricts which GPUs this process sees.
    shown_by_launcher: bool,
    nccl: bool,
}

/// Assignment of GPUs to this process's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    /// One GPU for each rank, by ordinal.
    Each(Vec<usize>),
    /// The first GPU, shared by all ranks.
    Shared,
    /// A single rank does all the work, for this reason.
    One(&'static str),
}

fn choose(asked: &GpuRequest, there: &HostGpus) -> Result<Choice> {
    let world_size = asked.world_size;
    if world_size == 1 {
        return Ok(Choice::Each(vec![0]));
    }
    let without_nccl = || {
        let text = format!("{world_size} ranks on GPUs need NCCL, and libnccl.so cannot be opened");
        RunError::Refused(text)
    };
    match asked.job {
        Some(_) if asked.shares => Err(RunError::Refused(
            "parallel.ranks_per_device is for ranks of one process, as with --ranks, and a launcher started \
             these: set it to 1, or run without the launcher"
                .to_owned(),
        )),
        None if asked.shares => Ok(Choice::Shared),
        Some(_) if !there.nccl => Err(without_nccl()),
        // Some launchers show each process only its own GPU, as Slurm's --gpus-per-task does.
        Some((_, local_size)) if there.gpus == 1 && local_size > 1 && there.shown_by_launcher => {
            Ok(Choice::Each(vec![0]))
        }
        Some((_, local_size)) if local_size > there.gpus => Err(RunError::Refused(format!(
            "there are {local_size} ranks on this host and {} GPUs: one rank runs on one GPU, unless those \
             of one process share it (parallel.ranks_per_device)",
            there.gpus
        ))),
        Some((local_rank, _)) => Ok(Choice::Each(vec![local_rank])),
        None if world_size <= there.gpus && there.nccl => Ok(Choice::Each((0..world_size).collect())),
        None if asked.threads && world_size <= there.gpus => Err(without_nccl()),
        None if asked.threads => Err(RunError::Refused(format!(
            "--ranks {world_size}: there are {} GPUs, and one rank runs on one GPU: \
             parallel.ranks_per_device = {world_size} lets all share the first",
            there.gpus
        ))),
        None if world_size <= there.gpus => Ok(Choice::One("without NCCL (libnccl.so cannot be opened), ")),
        None => Ok(Choice::One("")),
    }
}

fn on_gpus(gpus: &[GpuInfo], config: &mut RunConfig, rank: usize, choice: Choice) -> Result<ChosenPlacement> {
    let world_size = config.world_size();
    let all = gpus.len();
    let name = |ordinal: usize| gpus.get(ordinal).map_or("", |gpu| gpu.name.as_str());
    let (ordinals, reason) = match choice {
        Choice::Each(ordinals) if ordinals.len() == 1 => {
            let reason = format!("GPU {} of {all}, {}", ordinals[0], name(ordinals[0]));
            (ordinals, reason)
        }
        Choice::Each(ordinals) => {
            let reason = format!("{} of {all} GPUs, {}", ordinals.len(), name(0));
            (ordinals, reason)
        }
        Choice::Shared => {
            let reason = format!("GPU 0 of {all}, {}, which {world_size} ranks share", name(0));
            (vec![0; world_size], reason)
        }
        Choice::One(why) => {
            config.parallel.set_grid(GridShape::from_sizes(|_| 1));
            let reason = format!(
                "GPU 0 of {all}, {}: {why}one rank does the work of the {world_size} that are \
                 configured, in {} lanes and so \
                 with the same bits (parallel.ranks_per_device = {world_size} runs all of them on it)",
                name(0),
                config.parallel.lanes
            );
            (vec![0], reason)
        }
    };
    let first = ordinals.first().copied().unwrap_or(0);
    let mut description = describe(first)?;
    if config.world_size() > 1 && !config.parallel.shares_gpu() {
        description.libraries += &format!(", NCCL {}", collective::nccl::version().unwrap_or_default());
    }
    let first_rank = if ordinals.len() == 1 && config.world_size() > 1 { rank } else { 0 };
    Ok(ChosenPlacement { placement: Placement::Cuda(Gpus { first_rank, ordinals, description }), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_gpu_or_one_rank_does_all_or_the_run_is_refused() {
        let there = |gpus: usize| HostGpus { gpus, shown_by_launcher: false, nccl: true };
        let alone =
            |world_size: usize, threads: bool| GpuRequest { world_size, job: None, threads, shares: false };
        let job = |world_size: usize, local: (usize, usize)| GpuRequest {
            job: Some(local),
            ..alone(world_size, false)
        };
        let shared = |asked: GpuRequest| GpuRequest { shares: true, ..asked };
        let each = |ordinals: &[usize]| Some(Choice::Each(ordinals.to_vec()));
        let shown = HostGpus { shown_by_launcher: true, ..there(1) };
        let without = HostGpus { nccl: false, ..there(4) };
        for (asked, there, expected, message) in [
            (alone(1, false), there(1), each(&[0]), ""),
            (alone(4, false), there(4), each(&[0, 1, 2, 3]), ""),
            (alone(2, true), there(4), each(&[0, 1]), ""),
            (alone(4, false), there(2), Some(Choice::One("")), ""),
            (alone(4, true), there(2), None, "parallel.ranks_per_device = 4 lets all share the first"),
            (alone(4, true), without, None, "libnccl.so"),
            (job(4, (2, 4)), there(4), each(&[2]), ""),
            // Two hosts with four ranks each: the second host's ranks begin again at GPU 0.
            (job(8, (0, 4)), there(4), each(&[0]), ""),
            (job(8, (3, 8)), there(4), None, "8 ranks on this host and 4 GPUs"),
            (job(4, (3, 4)), shown, each(&[0]), ""),
            (job(4, (3, 4)), there(1), None, "4 ranks on this host and 1 GPUs"),
            (job(2, (0, 2)), without, None, "libnccl.so"),
            (job(1, (0, 1)), without, each(&[0]), ""),
            (shared(alone(4, false)), there(1), Some(Choice::Shared), ""),
            (shared(alone(4, true)), without, Some(Choice::Shared), ""),
            (shared(job(4, (0, 4))), there(4), None, "parallel.ranks_per_device is for ranks of one process"),
        ] {
            match choose(&asked, &there) {
                Ok(choice) => assert_eq!(Some(choice), expected, "{asked:?} {there:?}"),
                Err(error) => {
                    assert!(expected.is_none() && error.to_string().contains(message), "{asked:?}: {error}");
                    assert_eq!(error.exit_status(), 2);
                }
            }
        }
        let one = choose(&alone(2, false), &HostGpus { nccl: false, ..there(2) }).unwrap();
        assert!(matches!(one, Choice::One(why) if why.contains("NCCL")));
    }

    /// Runs the choice in launched processes on two hosts, each with two GPUs and two ranks.
    #[cfg(feature = "mpi")]
    #[test]
    fn ranks_of_each_host_begin_at_its_first_gpu() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/common/hosts");
        let mut command = std::process::Command::new(script);
        command.arg("2").arg(std::env::current_exe().unwrap());
        command.args(["placement::tests::one_rank", "--exact", "--ignored", "--nocapture"]);
        let output = command.output().unwrap();
        if output.status.code() == Some(77) {
            system::terminal::say(
                "skipped: two hosts cannot be faked, which needs mpirun and user namespaces",
            );
            return;
        }
        let message = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{message}");
        for (rank, ordinal) in [0, 1, 0, 1].into_iter().enumerate() {
            assert!(message.contains(&format!("rank {rank} gets Each([{ordinal}])")), "{message}");
        }
    }

    #[cfg(feature = "mpi")]
    #[test]
    #[ignore = "one process of a job that another test starts"]
    fn one_rank() {
        let startup = Startup::begin().unwrap();
        let there = HostGpus { gpus: 2, shown_by_launcher: false, nccl: true };
        let choice = choose(&GpuRequest::from_startup(4, &startup, None), &there).unwrap();
        println!("rank {} gets {choice:?}", startup.rank());
        startup.into_job().unwrap().finish().unwrap();
    }
}
