//! The launcher that started this process, found in its environment.

use collective::tcp::{Member, Secret};

use crate::error::{Result, RunError};

/// Port of rank 0 if no variable gives one, as torchrun's.
const PORT: u16 = 29500;
/// The secret that the ranks of a job prove to each other.
const SECRET: &str = "PLIMSOLL_SECRET";
/// Port of rank 0 instead of the launcher's.
const OWN_PORT: &str = "PLIMSOLL_PORT";

/// A launcher of this process and of others.
#[derive(Clone, Debug)]
pub(crate) enum Launcher {
    /// An MPI launcher, or Slurm's with PMI, and its number of processes.
    Mpi(usize),
    /// A launcher that sets RANK, WORLD_SIZE and MASTER_ADDR, such as torchrun.
    Variables(Member),
}

/// The environment of a process.
pub(crate) struct Environment<'a> {
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Whether this build can join an MPI launcher's job.
    pub(crate) has_mpi: bool,
}

impl Launcher {
    /// Returns the launcher of this process, if it has one.
    ///
    /// # Errors
    /// Variables with values that no launcher sets.
    pub(crate) fn of_process() -> Result<Option<Self>> {
        Environment::of_process().launcher()
    }

    /// The number of processes in the job.
    pub(crate) fn processes(&self) -> usize {
        match self {
            Launcher::Mpi(processes) => *processes,
            Launcher::Variables(member) => member.world_size,
        }
    }
}

impl Environment<'_> {
    pub(crate) fn of_process() -> Self {
        Environment { variable: &|name| std::env::var(name).ok(), has_mpi: cfg!(feature = "mpi") }
    }

    /// Returns the launcher. A launcher within another one's job takes precedence: torchrun's variables are
    /// its own, and those of an MPI launcher count if RANK and WORLD_SIZE do not repeat them.
    fn launcher(&self) -> Result<Option<Launcher>> {
        let mpi = self.mpi_processes();
        let is_of_torchrun = self.text("TORCHELASTIC_RUN_ID").is_some();
        match self.rank_and_size() {
            Some(rank_and_size) if is_of_torchrun || !self.is_within_mpi(&rank_and_size) => {
                let member = self.member(&rank_and_size)?;
                Ok(Some(member).filter(|member| member.world_size > 1).map(Launcher::Variables))
            }
            _ => Ok(mpi.map(Launcher::Mpi)),
        }
    }

    /// Returns a warning about a launcher whose variables are incomplete, so that its processes would each
    /// run alone.
    pub(crate) fn warning(&self) -> Option<String> {
        if self.mpi_processes().is_some() || self.rank_and_size().is_some() {
            return None;
        }
        let (rank, size) = (self.number("RANK"), self.number("WORLD_SIZE"));
        let set = match (size, rank) {
            (Some(size), _) if size > 1 => format!("WORLD_SIZE is {size}"),
            (None, Some(rank)) if rank > 0 => format!("RANK is {rank}"),
            _ => return None,
        };
        let missing =
            ["RANK", "WORLD_SIZE", "MASTER_ADDR"].into_iter().find(|name| self.text(name).is_none());
        Some(format!(
            "{set}, but {} is not set, so this process trains alone: a launcher of several sets RANK, \
             WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            missing.unwrap_or("RANK")
        ))
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.text(name).and_then(|value| value.trim().parse().ok())
    }

    /// Returns a number that must be one.
    ///
    /// # Errors
    /// Another text.
    fn checked(&self, name: &str) -> Result<Option<usize>> {
        let parsed = |text: String| text.trim().parse().map_err(|_| format!("{name}={text} is not a number"));
        self.text(name).map(parsed).transpose().map_err(RunError::Refused)
    }

    /// Returns the number of processes that an MPI launcher started, if one did: Open MPI's, MPICH's and
    /// others with PMI, or Slurm's. Inside a Slurm job, whose steps have their own tasks, the variables of an
    /// MPI launcher take precedence.
    fn mpi_processes(&self) -> Option<usize> {
        self.number("OMPI_COMM_WORLD_SIZE").or_else(|| self.number("PMI_SIZE")).or_else(|| self.slurm_tasks())
    }

    /// Returns the number of tasks of a Slurm step with several.
    fn slurm_tasks(&self) -> Option<usize> {
        let tasks = self.text("SLURM_STEP_ID").and_then(|_| self.number("SLURM_STEP_NUM_TASKS"));
        tasks.filter(|tasks| *tasks > 1)
    }

    /// Returns the names of the variables with rank, number of ranks and local rank, if there are such and
    /// rank 0 has an address. A build without MPI takes Slurm's.
    fn rank_and_size(&self) -> Option<[&'static str; 3]> {
        self.text("MASTER_ADDR")?;
        if self.text("RANK").is_some() && self.text("WORLD_SIZE").is_some() {
            return Some(["RANK", "WORLD_SIZE", "LOCAL_RANK"]);
        }
        let is_slurm = !self.has_mpi && self.slurm_tasks().is_some();
        is_slurm.then_some(["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"])
    }

    /// Returns whether an MPI launcher started this process inside the job of the variables.
    fn is_within_mpi(&self, [rank, size, _]: &[&str; 3]) -> bool {
        let of = |size_name: &str, rank_name: &str| Some((self.number(size_name)?, self.number(rank_name)));
        let mpi = of("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK").or_else(|| of("PMI_SIZE", "PMI_RANK"));
        mpi.is_some_and(|mpi| Some(mpi.0) != self.number(size) || mpi.1 != self.number(rank))
    }

    fn member(&self, [rank, size, local_rank]: &[&str; 3]) -> Result<Member> {
        let secret = self.text(SECRET).map(|secret| Secret::new(secret.as_bytes())).transpose();
        let (rank, world_size) = (self.checked(rank)?, self.checked(size)?);
        Ok(Member {
            rank: rank.unwrap_or(0),
            world_size: world_size.unwrap_or(1),
            local_rank: self.checked(local_rank)?,
            local_size: self.checked("LOCAL_WORLD_SIZE")?,
            address: self.text("MASTER_ADDR").unwrap_or_default().trim().to_owned(),
            port: self.port()?,
            secret: secret.map_err(|why| RunError::Refused(format!("{SECRET}: {why}")))?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    /// Returns rank 0's port. At MASTER_PORT itself, torchrun listens while its processes run.
    fn port(&self) -> Result<u16> {
        let in_use = self.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let (name, port) = match self.checked(OWN_PORT)? {
            Some(port) => (OWN_PORT, port),
            None => {
                let port = self.checked("MASTER_PORT")?.unwrap_or(usize::from(PORT));
                ("MASTER_PORT", port.saturating_add(usize::from(in_use)))
            }
        };
        match u16::try_from(port) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(RunError::Refused(format!("{name}: there is no port {port}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Variables = &'static [(&'static str, &'static str)];

    fn with<T>(variables: Variables, has_mpi: bool, then: impl FnOnce(&Environment<'_>) -> T) -> T {
        let variable =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        then(&Environment { variable: &variable, has_mpi })
    }

    #[test]
    fn a_launcher_of_mpi_is_recognised_by_environment_variables() {
        let cases: [(Variables, Option<usize>); 10] = [
            (&[], None),
            (&[("OMPI_COMM_WORLD_SIZE", "1")], Some(1)),
            (&[("OMPI_COMM_WORLD_SIZE", "4")], Some(4)),
            (&[("PMI_SIZE", "2")], Some(2)),
            (&[("SLURM_STEP_NUM_TASKS", "2")], None),
            (&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], Some(2)),
            (&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")], None),
            (&[("PMI_SIZE", "two")], None),
            // mpirun inside a Slurm job: the step is that of its daemons, one on each node.
            (
                &[("OMPI_COMM_WORLD_SIZE", "8"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")],
                Some(8),
            ),
            // mpirun in a container of a job that another launcher started.
            (
                &[
                    ("OMPI_COMM_WORLD_SIZE", "8"),
                    ("OMPI_COMM_WORLD_RANK", "3"),
                    ("RANK", "0"),
                    ("WORLD_SIZE", "2"),
                    ("MASTER_ADDR", "pod-0"),
                ],
                Some(8),
            ),
        ];
        for (variables, expected) in cases {
            let launcher = with(variables, true, |environment| environment.launcher().unwrap());
            assert!(matches!(launcher, None | Some(Launcher::Mpi(_))), "{variables:?}");
            assert_eq!(launcher.map(|launcher| launcher.processes()), expected, "{variables:?}");
        }
    }

    #[test]
    fn rank_size_and_address_make_a_rank() {
        const TORCHRUN: Variables = &[
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node-0"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "none"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "1"),
        ];
        const SLURM: Variables = &[
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_PROCID", "2"),
            ("SLURM_LOCALID", "0"),
            ("MASTER_ADDR", "node-0"),
            ("PLIMSOLL_PORT", "4000"),
        ];
        const OPERATOR: Variables = &[
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "job-master-0"),
            ("MASTER_PORT", "23456"),
            ("PLIMSOLL_SECRET", "0123456789abcdef"),
        ];
        // Variables that repeat those of an MPI launcher ask for TCP.
        const REPEATED: Variables = &[
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "localhost"),
        ];
        for (variables, has_mpi, rank, size, local, port) in [
            (TORCHRUN, true, 3, 8, (Some(1), Some(2)), 29501),
            (SLURM, false, 2, 4, (Some(0), None), 4000),
            (OPERATOR, true, 1, 2, (None, None), 23456),
            (REPEATED, true, 1, 2, (None, None), 29500),
        ] {
            let launcher = with(variables, has_mpi, |environment| environment.launcher().unwrap());
            let Some(Launcher::Variables(member)) = launcher else { panic!("{variables:?}: {launcher:?}") };
            let actual =
                (member.rank, member.world_size, (member.local_rank, member.local_size), member.port);
            assert_eq!(actual, (rank, size, local, port), "{variables:?}");
            assert_eq!(member.secret.is_some(), variables == OPERATOR);
        }
        // With MPI, Slurm's tasks are ranks of MPI.
        assert!(matches!(with(SLURM, true, |e| e.launcher().unwrap()), Some(Launcher::Mpi(4))));
        const ALONE: Variables = &[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost")];
        assert!(with(ALONE, true, |environment| environment.launcher().unwrap()).is_none());
    }

    #[test]
    fn wrong_values_are_refused_and_incomplete_ones_warned_about() {
        let refused: [(Variables, &str); 5] = [
            (&[("RANK", "one"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")], "RANK=one is not a number"),
            (&[("RANK", "1"), ("WORLD_SIZE", "-2"), ("MASTER_ADDR", "a")], "WORLD_SIZE=-2 is not a number"),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")],
                "MASTER_PORT: there is no port 70000",
            ),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("PLIMSOLL_PORT", "0")],
                "PLIMSOLL_PORT: there is no port 0",
            ),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("PLIMSOLL_SECRET", "")],
                "PLIMSOLL_SECRET: it has 0 bytes, and at least 16 are needed",
            ),
        ];
        for (variables, words) in refused {
            let error = with(variables, true, |environment| environment.launcher().unwrap_err());
            assert_eq!((error.to_string().as_str(), error.exit_status()), (words, 2));
        }
        let warned: [(Variables, Option<&str>); 7] = [
            (&[], None),
            (&[("WORLD_SIZE", "1")], None),
            (&[("RANK", "0")], None),
            (&[("WORLD_SIZE", "4")], Some("WORLD_SIZE is 4, but RANK is not set")),
            (&[("WORLD_SIZE", "4"), ("RANK", "1")], Some("WORLD_SIZE is 4, but MASTER_ADDR is not set")),
            (&[("RANK", "2"), ("MASTER_ADDR", "a")], Some("RANK is 2, but WORLD_SIZE is not set")),
            (&[("WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_SIZE", "4")], None),
        ];
        for (variables, words) in warned {
            let warning = with(variables, true, |environment| environment.warning());
            assert_eq!(warning.is_some(), words.is_some(), "{variables:?}: {warning:?}");
            assert!(warning.is_none_or(|text| text.starts_with(words.unwrap_or_default())), "{variables:?}");
        }
    }
}
