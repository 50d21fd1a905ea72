//! The launcher that started this process, found in its environment.

use std::ops::RangeInclusive;

use collective::tcp::{Member, Secret};
use system::environment;

use crate::error::{Result, RunError};

/// Port of rank 0 if no variable gives one, as torchrun's.
const PORT: u64 = 29500;
/// The secret that the ranks of a job prove to each other.
const SECRET: &str = "PLIMSOLL_SECRET";
/// Port of rank 0 instead of the launcher's.
const OWN_PORT: &str = "PLIMSOLL_PORT";
/// Seconds in which all ranks must start.
const START_SECONDS: &str = "PLIMSOLL_START_SECONDS";
/// The number of ranks of this process's host.
const LOCAL_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Name or address of rank 0's host.
const ADDRESS: &str = "MASTER_ADDR";
/// The ranks that a variable can number.
const MOST_RANKS: u64 = 1 << 20;
/// The ports of a host.
const PORTS: RangeInclusive<u64> = 1..=65_535;
/// The seconds that a wait can take: 30 years.
const SECONDS: RangeInclusive<u64> = 1..=1_000_000_000;

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
        Environment { variable: &environment::text, has_mpi: cfg!(feature = "mpi") }
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

    /// Returns this process's rank by the variables of its launcher.
    pub(crate) fn rank(&self) -> Option<usize> {
        match self.launcher().ok()?? {
            Launcher::Variables(member) => Some(member.rank),
            Launcher::Mpi(_) => ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"]
                .into_iter()
                .find_map(|name| self.number(name)),
        }
    }

    /// Returns a warning about a launcher whose variables are incomplete, so that its processes would each
    /// run alone.
    ///
    /// # Errors
    /// A rank or number of ranks that is no number.
    pub(crate) fn warning(&self) -> Result<Option<String>> {
        if self.mpi_processes().is_some() || self.rank_and_size().is_some() {
            return Ok(None);
        }
        let set = match (self.ranks("WORLD_SIZE", 1)?, self.ranks("RANK", 0)?) {
            (Some(size), _) if size > 1 => format!("WORLD_SIZE is {size}"),
            (None, Some(rank)) if rank > 0 => format!("RANK is {rank}"),
            _ => return Ok(None),
        };
        let missing =
            ["RANK", "WORLD_SIZE", "MASTER_ADDR"].into_iter().find(|name| self.text(name).is_none());
        Ok(Some(format!(
            "{set}, but {} is not set, so this process trains alone: a launcher of several sets RANK, \
             WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            missing.unwrap_or("RANK")
        )))
    }

    /// Checks the variables of this program's own that a process without a job does not use.
    ///
    /// # Errors
    /// Values that a process of a job refuses.
    pub(crate) fn check_own(&self) -> Result<()> {
        self.start_seconds()?;
        self.checked(OWN_PORT, PORTS)?;
        self.secret().map(drop)
    }

    /// Returns the seconds in which all ranks must start, if the user sets them.
    ///
    /// # Errors
    /// Another value than a number of seconds.
    pub(crate) fn start_seconds(&self) -> Result<Option<u64>> {
        self.checked(START_SECONDS, SECONDS)
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.text(name).and_then(|value| value.trim().parse().ok())
    }

    /// Returns a number that must be one of `range`.
    ///
    /// # Errors
    /// Another text.
    fn checked(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let parsed = |text: String| environment::number(name, &text, range);
        self.text(name).map(parsed).transpose().map_err(RunError::Refused)
    }

    /// Returns a number of ranks, or of one rank from `least` on.
    ///
    /// # Errors
    /// Another text.
    fn ranks(&self, name: &str, least: u64) -> Result<Option<usize>> {
        let ranks = self.checked(name, least..=MOST_RANKS)?;
        Ok(ranks.and_then(|ranks| usize::try_from(ranks).ok()))
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

    fn member(&self, [rank_name, size_name, local_name]: &[&str; 3]) -> Result<Member> {
        let (rank, world_size) = (self.ranks(rank_name, 0)?, self.ranks(size_name, 1)?);
        let (rank, world_size) = (rank.unwrap_or(0), world_size.unwrap_or(1));
        if rank >= world_size {
            let text = format!("{rank_name}={rank}: there is no such rank, because {size_name}={world_size}");
            return Err(RunError::Refused(text));
        }
        let (local_rank, local_size) = (self.ranks(local_name, 0)?, self.ranks(LOCAL_SIZE, 1)?);
        if let Some(local_size) = local_size {
            let no_rank = local_rank.filter(|local_rank| *local_rank >= local_size);
            let reason = match no_rank {
                Some(local_rank) => format!("{local_name}={local_rank}: there is no such rank of a host"),
                None if local_size > world_size => format!("{size_name}={world_size}: a host has more"),
                None => String::new(),
            };
            if !reason.is_empty() {
                return Err(RunError::Refused(format!("{reason}, because {LOCAL_SIZE}={local_size}")));
            }
        }
        Ok(Member {
            rank,
            world_size,
            local_rank,
            local_size,
            address: if world_size > 1 { self.address()? } else { String::new() },
            port: self.port()?,
            secret: self.secret()?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    fn secret(&self) -> Result<Option<Secret>> {
        let secret = self.text(SECRET).map(|secret| Secret::new(secret.as_bytes())).transpose();
        secret.map_err(|why| RunError::Refused(format!("{SECRET}: {why}")))
    }

    /// Returns the name or address of rank 0's host, which need not exist yet.
    ///
    /// # Errors
    /// A text that no host is called.
    fn address(&self) -> Result<String> {
        let text = self.text(ADDRESS).unwrap_or_default();
        let address = text.trim();
        if address.is_empty() {
            let text = format!("{ADDRESS} is empty: set it to the name or address of rank 0's host");
            return Err(RunError::Refused(text));
        }
        let bare = address.trim_start_matches('[').trim_end_matches(']');
        if bare.parse::<std::net::IpAddr>().is_ok() || is_name(address) {
            return Ok(address.to_owned());
        }
        Err(RunError::Refused(format!(
            "{ADDRESS}={address} is no name or address of a host (MASTER_PORT has the port)"
        )))
    }

    /// Returns rank 0's port. At MASTER_PORT itself, torchrun listens while its processes run.
    fn port(&self) -> Result<u16> {
        let in_use = self.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = match self.checked(OWN_PORT, PORTS)? {
            Some(port) => port,
            None => self.checked("MASTER_PORT", PORTS)?.unwrap_or(PORT) + u64::from(in_use),
        };
        let beyond =
            || RunError::Refused(format!("MASTER_PORT: there is no port {port} after it: use a lower one"));
        u16::try_from(port).map_err(|_| beyond())
    }
}

/// Returns whether a host can have this name: words of letters, digits, hyphens and underscores with periods
/// between them.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_word = |word: &str| (1..=63).contains(&word.len()) && word.bytes().all(allowed);
    text.len() <= 253 && text.trim_end_matches('.').split('.').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Variables = &'static [(&'static str, &'static str)];

    fn with<T>(variables: &[(&str, &str)], has_mpi: bool, then: impl FnOnce(&Environment<'_>) -> T) -> T {
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
        const NUMBER: &str = " is not a number from ";
        const EMPTY: &str = " is empty: set it to ";
        // Variables that replace those of a rank that starts, and the beginning of the refusal.
        let refused: [(Variables, String); 24] = [
            (&[("RANK", "one")], format!("RANK=one{NUMBER}0 to ")),
            (&[("RANK", "")], format!("RANK{EMPTY}")),
            (&[("RANK", "-1")], format!("RANK=-1{NUMBER}")),
            (&[("RANK", "2")], "RANK=2: there is no such rank, because WORLD_SIZE=2".to_owned()),
            (&[("WORLD_SIZE", "-2")], format!("WORLD_SIZE=-2{NUMBER}1 to ")),
            (&[("WORLD_SIZE", "0")], format!("WORLD_SIZE=0{NUMBER}1 to ")),
            (&[("WORLD_SIZE", "1")], "RANK=1: there is no such rank, because WORLD_SIZE=1".to_owned()),
            (&[("WORLD_SIZE", " ")], format!("WORLD_SIZE{EMPTY}")),
            (&[("LOCAL_RANK", "")], format!("LOCAL_RANK{EMPTY}")),
            (&[("LOCAL_RANK", "0,1")], format!("LOCAL_RANK=0,1{NUMBER}")),
            (&[("LOCAL_WORLD_SIZE", "0")], format!("LOCAL_WORLD_SIZE=0{NUMBER}")),
            (
                &[("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")],
                "LOCAL_RANK=2: there is no such rank of a host, because LOCAL_WORLD_SIZE=2".to_owned(),
            ),
            (
                &[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "3")],
                "WORLD_SIZE=2: a host has more, because LOCAL_WORLD_SIZE=3".to_owned(),
            ),
            (&[("LOCAL_WORLD_SIZE", "3")], "WORLD_SIZE=2: a host has more, because".to_owned()),
            (&[("MASTER_ADDR", "")], "MASTER_ADDR is empty: set it to the name or address of".to_owned()),
            (&[("MASTER_ADDR", "\t")], "MASTER_ADDR is empty".to_owned()),
            (&[("MASTER_ADDR", "node:29500")], "MASTER_ADDR=node:29500 is no name or address".to_owned()),
            (&[("MASTER_ADDR", "http://node")], "MASTER_ADDR=http://node is no name".to_owned()),
            (&[("MASTER_ADDR", "a b")], "MASTER_ADDR=a b is no name".to_owned()),
            (&[("MASTER_ADDR", "a..b")], "MASTER_ADDR=a..b is no name".to_owned()),
            (&[("MASTER_PORT", "70000")], format!("MASTER_PORT=70000{NUMBER}1 to 65535")),
            (&[("MASTER_PORT", "")], format!("MASTER_PORT{EMPTY}")),
            (&[("PLIMSOLL_PORT", "0")], format!("PLIMSOLL_PORT=0{NUMBER}1 to 65535")),
            (
                &[("PLIMSOLL_SECRET", "")],
                "PLIMSOLL_SECRET: it has 0 bytes, and at least 16 are needed".to_owned(),
            ),
        ];
        const RANK: Variables = &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
        for (replaced, beginning) in refused {
            let variables: Vec<_> = replaced.iter().chain(RANK).copied().collect();
            let error = with(&variables, true, |environment| environment.launcher().unwrap_err());
            assert!(error.to_string().starts_with(&beginning), "{error}");
            assert_eq!(error.exit_status(), 2);
        }
        let last = [("MASTER_PORT", "65535"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
        let variables: Vec<_> = last.iter().chain(RANK).copied().collect();
        let error = with(&variables, true, |environment| environment.launcher().unwrap_err());
        assert!(error.to_string().contains("there is no port 65536"), "{error}");
        for address in ["node-0", "a.b.c", "job_1.svc.", "10.0.0.1", "::1", "[fe80::1]", "not-yet.invalid"] {
            let variables: Vec<_> = [("MASTER_ADDR", address)].iter().chain(RANK).copied().collect();
            assert!(with(&variables, true, |environment| environment.launcher().is_ok()), "{address}");
        }
        for (text, seconds) in [(None, Some(None)), (Some("5"), Some(Some(5))), (Some("5s"), None)] {
            let variables: Vec<_> = text.iter().map(|text| (START_SECONDS, *text)).collect();
            let read = with(&variables, true, |environment| environment.start_seconds());
            assert_eq!(read.ok(), seconds, "{text:?}");
        }
        // Without a launcher, too.
        for (name, value) in [
            (START_SECONDS, "5s"),
            (OWN_PORT, "http"),
            (SECRET, "short"),
            ("RANK", "one"),
            ("RANK", ""),
            ("WORLD_SIZE", "two"),
            ("WORLD_SIZE", "0"),
        ] {
            let checked = with(&[(name, value)], true, |environment| {
                environment.warning().and_then(|_| environment.check_own())
            });
            let refused = checked.unwrap_err();
            assert!(refused.exit_status() == 2 && refused.to_string().starts_with(name), "{refused}");
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
            let warning = with(variables, true, |environment| environment.warning().unwrap());
            assert_eq!(warning.is_some(), words.is_some(), "{variables:?}: {warning:?}");
            assert!(warning.is_none_or(|text| text.starts_with(words.unwrap_or_default())), "{variables:?}");
        }
    }
}
