//! Detects the launcher that started this process from its environment variables.

use std::ops::RangeInclusive;

use collective::tcp::{Member, Secret};
use system::environment;

use crate::error::{Result, RunError};

/// Default port of rank 0, the same as torchrun's.
const PORT: u64 = 29500;
/// Name of the variable with the secret that ranks of a job prove to each other.
const SECRET: &str = "PLIMSOLL_SECRET";
/// Name of the variable that overrides rank 0's port.
const OWN_PORT: &str = "PLIMSOLL_PORT";
/// Name of the variable with the seconds within which all ranks must start.
const START_SECONDS: &str = "PLIMSOLL_START_SECONDS";
/// Name of the variable with the number of ranks on this host.
const LOCAL_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Name of the variable with the host name or address of rank 0.
const ADDRESS: &str = "MASTER_ADDR";
/// Maximum number of ranks accepted from a variable.
const MOST_RANKS: u64 = 1 << 20;
/// Valid port numbers.
const PORTS: RangeInclusive<u64> = 1..=65_535;
/// Valid timeouts in seconds, up to 30 years.
const SECONDS: RangeInclusive<u64> = 1..=1_000_000_000;

/// The launcher that started this process.
#[derive(Clone, Debug)]
pub(crate) enum Launcher {
    /// An MPI launcher, or Slurm with PMI, and its number of processes.
    Mpi(usize),
    /// A launcher that sets RANK, WORLD_SIZE and MASTER_ADDR, such as torchrun.
    Variables(Member),
}

/// The environment variables of a process.
pub(crate) struct Environment<'a> {
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Whether this build can join an MPI job.
    pub(crate) has_mpi: bool,
}

impl Launcher {
    /// Returns the launcher of this process; `None` if there is none.
    ///
    /// # Errors
    /// A variable has a value that no launcher sets.
    pub(crate) fn of_process() -> Result<Option<Self>> {
        Environment::of_process().launcher()
    }

    /// Returns the number of processes in the job.
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

    /// Returns the launcher. A launcher started within another one's job takes precedence. torchrun's
    /// variables are always its own. An MPI launcher's variables are used if RANK and WORLD_SIZE disagree
    /// with them or are unset.
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

    /// Returns this process's rank from its launcher's variables.
    pub(crate) fn rank(&self) -> Option<usize> {
        match self.launcher().ok()?? {
            Launcher::Variables(member) => Some(member.rank),
            Launcher::Mpi(_) => ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"]
                .into_iter()
                .find_map(|name| self.number(name)),
        }
    }

    /// Returns a warning if a launcher's variables are incomplete, so that each process would run alone.
    ///
    /// # Errors
    /// A rank or number of ranks is not a number.
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

    /// Checks Plimsoll's own variables in a process outside a job, which does not use them.
    ///
    /// # Errors
    /// A value is invalid.
    pub(crate) fn check_own(&self) -> Result<()> {
        self.start_seconds()?;
        self.checked(OWN_PORT, PORTS)?;
        self.secret().map(drop)
    }

    /// Returns the seconds within which all ranks must start; `None` if not set.
    ///
    /// # Errors
    /// The value is not a valid number of seconds.
    pub(crate) fn start_seconds(&self) -> Result<Option<u64>> {
        self.checked(START_SECONDS, SECONDS)
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.text(name).and_then(|value| value.trim().parse().ok())
    }

    /// Returns the variable's number, which must lie in `range`.
    ///
    /// # Errors
    /// The text is anything else.
    fn checked(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let parsed = |text: String| environment::number(name, &text, range);
        self.text(name).map(parsed).transpose().map_err(RunError::Refused)
    }

    /// Returns a variable's number of ranks or rank index, at least `least`.
    ///
    /// # Errors
    /// The text is anything else.
    fn ranks(&self, name: &str, least: u64) -> Result<Option<usize>> {
        let ranks = self.checked(name, least..=MOST_RANKS)?;
        Ok(ranks.and_then(|ranks| usize::try_from(ranks).ok()))
    }

    /// Returns the number of processes started by an MPI launcher (Open MPI, MPICH and others with PMI) or by
    /// Slurm. Within a Slurm step, the MPI launcher's variables take precedence.
    fn mpi_processes(&self) -> Option<usize> {
        self.number("OMPI_COMM_WORLD_SIZE").or_else(|| self.number("PMI_SIZE")).or_else(|| self.slurm_tasks())
    }

    /// Returns the number of tasks of a Slurm step; `None` if there is only one.
    fn slurm_tasks(&self) -> Option<usize> {
        let tasks = self.text("SLURM_STEP_ID").and_then(|_| self.number("SLURM_STEP_NUM_TASKS"));
        tasks.filter(|tasks| *tasks > 1)
    }

    /// Returns the names of the variables for rank, world size and local rank, if rank 0's address is set. A
    /// build without MPI accepts Slurm's variables.
    fn rank_and_size(&self) -> Option<[&'static str; 3]> {
        self.text("MASTER_ADDR")?;
        if self.text("RANK").is_some() && self.text("WORLD_SIZE").is_some() {
            return Some(["RANK", "WORLD_SIZE", "LOCAL_RANK"]);
        }
        let is_slurm = !self.has_mpi && self.slurm_tasks().is_some();
        is_slurm.then_some(["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"])
    }

    /// Returns whether an MPI launcher started this process, inside a job described by these variables.
    fn is_within_mpi(&self, [rank, size, _]: &[&str; 3]) -> bool {
        let numbers =
            |size_name: &str, rank_name: &str| Some((self.number(size_name)?, self.number(rank_name)));
        let mpi = numbers("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
            .or_else(|| numbers("PMI_SIZE", "PMI_RANK"));
        mpi.is_some_and(|mpi| Some(mpi.0) != self.number(size) || mpi.1 != self.number(rank))
    }

    fn member(&self, [rank_name, size_name, local_name]: &[&str; 3]) -> Result<Member> {
        let rank = self.ranks(rank_name, 0)?;
        let world_size = self.ranks(size_name, 1)?;
        let rank = rank.unwrap_or(0);
        let world_size = world_size.unwrap_or(1);
        if rank >= world_size {
            let text = format!("{rank_name}={rank}: there is no such rank, because {size_name}={world_size}");
            return Err(RunError::Refused(text));
        }
        let local_rank = self.ranks(local_name, 0)?;
        let local_size = self.ranks(LOCAL_SIZE, 1)?;
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

    /// Returns the host name or address of rank 0; the host need not exist yet.
    ///
    /// # Errors
    /// The text cannot be a host name.
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

    /// Returns rank 0's port. If torchrun itself listens at MASTER_PORT, another port is used.
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

/// Returns whether `text` can be a host name: words of letters, digits, hyphens and underscores, separated by
/// periods.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_word = |word: &str| (1..=63).contains(&word.len()) && word.bytes().all(allowed);
    text.len() <= 253 && text.trim_end_matches('.').split('.').all(is_word)
}

#[cfg(test)]
mod tests;
