//! The hosts of a job, which of them answer, and the launcher's command on some of them.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use telemetry::host_name;

use crate::error::{Result, RunError};

/// Time in which a host must answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Interval at which the answers are looked for.
const LOOK: Duration = Duration::from_millis(20);
/// The most bytes of a file of hosts.
const MOST_BYTES: u64 = 16 << 20;

/// A way to start ranks on hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobLauncher {
    /// Open MPI's `mpirun`, or another with its options.
    Mpirun,
    /// Slurm's `srun`, inside an allocation.
    Srun,
    /// No launcher: one process of this host, whose threads are the ranks.
    Threads,
}

/// A host, and the number of ranks that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) slots: usize,
}

/// The hosts of a job, and the launcher with its other options.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    launcher: JobLauncher,
    /// None: this host alone, which no option names.
    named: Vec<Host>,
    /// Ranks that this host takes, if no host is named.
    slots: usize,
    /// The launcher's options without those about hosts and numbers of ranks.
    options: Vec<OsString>,
}

impl Hosts {
    /// Reads the launcher's options, or the variables of Slurm's allocation. Without hosts among them, this
    /// host takes `ranks` ranks.
    ///
    /// # Errors
    /// An option without its value, or of no launcher; a file of hosts that cannot be read.
    pub(super) fn of(launcher: JobLauncher, options: &[OsString], ranks: usize) -> Result<Self> {
        let mut hosts = Hosts { launcher, named: Vec::new(), slots: ranks, options: Vec::new() };
        if launcher == JobLauncher::Srun {
            hosts.options = options.to_vec();
            hosts.named = allocated(ranks)?;
            return Ok(hosts);
        }
        if let (JobLauncher::Threads, Some(option)) = (launcher, options.first()) {
            let option = option.to_string_lossy();
            return Err(RunError::Refused(format!(
                "{option}: with threads there is no launcher to take options; parallel.data and other keys \
                 set the number of ranks"
            )));
        }
        let mut words = options.iter();
        while let Some(word) = words.next() {
            let name = word.to_string_lossy();
            let mut value = || {
                let text = words.next().map(|value| value.to_string_lossy().into_owned());
                text.ok_or_else(|| RunError::Refused(format!("{name}: its value is missing")))
            };
            match name.trim_start_matches('-') {
                "n" | "np" | "c" => drop(value()?),
                "host" | "H" => hosts.named.extend(value()?.split(',').map(listed)),
                "hostfile" | "machinefile" => hosts.named.extend(in_file(Path::new(&value()?))?),
                _ => hosts.options.push(word.clone()),
            }
        }
        Ok(hosts)
    }

    /// Returns the hosts that answer.
    pub(super) fn answering(&self) -> Vec<Host> {
        if self.named.is_empty() {
            return vec![Host { name: host_name(), slots: self.slots }];
        }
        let asked = self.named.iter().map(|host| (host, self.ask(&host.name)));
        let mut asked: Vec<_> = asked.collect();
        let began = Instant::now();
        let mut answers = vec![None; asked.len()];
        while answers.contains(&None) && began.elapsed() < ANSWER {
            for ((_, question), answer) in asked.iter_mut().zip(&mut answers) {
                *answer = answer.or_else(|| question.answer());
            }
            sleep(LOOK);
        }
        asked.iter_mut().for_each(|(_, question)| question.end());
        let answering = asked.iter().zip(&answers).filter(|(_, answer)| **answer == Some(true));
        answering.map(|((host, _), _)| (*host).clone()).collect()
    }

    /// Returns whether these are all hosts of the job.
    pub(super) fn are_all(&self, hosts: &[Host]) -> bool {
        hosts.len() >= self.named.len()
    }

    /// Returns the command that starts `ranks` ranks of `program` on these hosts; its arguments follow.
    pub(super) fn command(&self, program: &Path, hosts: &[Host], ranks: usize) -> Command {
        let names = || hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(",");
        match self.launcher {
            JobLauncher::Mpirun => {
                let mut command = Command::new(std::env::var_os("MPIRUN").unwrap_or_else(|| "mpirun".into()));
                command.args(&self.options);
                if !self.named.is_empty() {
                    let listed = hosts.iter().map(|Host { name, slots }| format!("{name}:{slots}"));
                    command.arg("--host").arg(listed.collect::<Vec<_>>().join(","));
                }
                command.args(["-n", &ranks.to_string()]).arg(program);
                command
            }
            JobLauncher::Threads => Command::new(program),
            JobLauncher::Srun => {
                let mut command = Command::new("srun");
                command.args(&self.options).arg(format!("--nodelist={}", names()));
                let nodes = hosts.len().min(ranks);
                command.arg(format!("--nodes={nodes}")).arg(format!("--ntasks={ranks}")).arg(program);
                command
            }
        }
    }

    /// Deletes a directory on the other hosts that answer.
    pub(super) fn remove(&self, directory: &Path) {
        let others = self.named.iter().filter(|host| !is_own(&host.name));
        let removing = others.map(|host| self.ask_to(&host.name, &["rm", "-rf", "--"], Some(directory)));
        let mut removing: Vec<_> = removing.collect();
        let began = Instant::now();
        while removing.iter_mut().any(|removal| removal.answer().is_none()) && began.elapsed() < ANSWER {
            sleep(LOOK);
        }
        removing.iter_mut().for_each(Question::end);
    }

    fn ask(&self, host: &str) -> Question {
        if is_own(host) { Question::Known(true) } else { self.ask_to(host, &["true"], None) }
    }

    /// Starts a command on another host.
    fn ask_to(&self, host: &str, words: &[&str], path: Option<&Path>) -> Question {
        let mut command = match self.launcher {
            JobLauncher::Mpirun | JobLauncher::Threads => agent(),
            JobLauncher::Srun => {
                let mut command = Command::new("srun");
                command.args(["--nodes=1", "--ntasks=1", "--overlap"]).arg(format!("--nodelist={host}"));
                command
            }
        };
        if self.launcher == JobLauncher::Mpirun {
            command.arg(host);
        }
        command.args(words).args(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map_or(Question::Known(false), Question::Asked)
    }
}

/// Returns whether a name is this host's.
fn is_own(host: &str) -> bool {
    host == "localhost" || host == host_name()
}

/// A question to a host.
enum Question {
    /// Answered without asking.
    Known(bool),
    /// The process that asks.
    Asked(Child),
}

impl Question {
    /// Returns whether the host answers; `None` if that is not known yet.
    fn answer(&mut self) -> Option<bool> {
        match self {
            Question::Known(answers) => Some(*answers),
            Question::Asked(child) => match child.try_wait() {
                Ok(status) => status.map(|status| status.success()),
                Err(_) => Some(false),
            },
        }
    }

    fn end(&mut self) {
        if let Question::Asked(child) = self {
            // A process that has ended cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the start of a command on another host, by the agent with which Open MPI reaches it.
fn agent() -> Command {
    let named = std::env::var("OMPI_MCA_plm_rsh_agent").unwrap_or_else(|_| "ssh".to_owned());
    let mut words = named.split(':').next().unwrap_or("ssh").split_whitespace();
    let program = words.next().unwrap_or("ssh");
    let mut command = Command::new(program);
    command.args(words);
    if Path::new(program).file_name() == Some(OsStr::new("ssh")) {
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]);
    }
    command
}

/// Returns a host of `--host`, as `name` or `name:slots`.
fn listed(text: &str) -> Host {
    let (name, slots) = text.split_once(':').unwrap_or((text, "1"));
    Host { name: name.trim().to_owned(), slots: slots.trim().parse().unwrap_or(1) }
}

/// Returns the hosts of a file with a host a line, as `name`, `name slots=4` or `name:4`.
fn in_file(path: &Path) -> Result<Vec<Host>> {
    let unreadable = |source| RunError::unreadable(path, source);
    let text = system::input::read_text(path, MOST_BYTES).map_err(unreadable)?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let host = |line: &str| {
        let mut words = line.split_whitespace();
        let mut host = listed(words.next()?);
        if let Some(slots) = words.find_map(|word| word.strip_prefix("slots=")?.parse().ok()) {
            host.slots = slots;
        }
        Some(host)
    };
    Ok(lines.filter_map(host).collect())
}

/// Returns the hosts of Slurm's allocation, which share `ranks` ranks equally if it does not say how many
/// each takes.
///
/// # Errors
/// No allocation.
fn allocated(ranks: usize) -> Result<Vec<Host>> {
    let refused = || {
        RunError::Refused(
            "--with srun: there is no allocation of Slurm, whose hosts scontrol names".to_owned(),
        )
    };
    let list = std::env::var("SLURM_JOB_NODELIST").map_err(|_| refused())?;
    let output =
        Command::new("scontrol").args(["show", "hostnames", &list]).output().map_err(|_| refused())?;
    let names: Vec<String> =
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect();
    if names.is_empty() {
        return Err(refused());
    }
    let each = std::env::var("SLURM_NTASKS_PER_NODE").ok().and_then(|tasks| tasks.parse().ok());
    let slots = each.unwrap_or_else(|| ranks.div_ceil(names.len()));
    Ok(names.into_iter().map(|name| Host { name, slots }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: usize) -> Host {
        Host { name: name.to_owned(), slots }
    }

    #[test]
    fn hosts_are_read_from_the_launchers_options() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts");
        std::fs::write(&file, "# two hosts\nnode1 slots=4 max_slots=8\nnode2:2 # the second\n\nnode3\n")
            .unwrap();
        let file = file.to_str().unwrap();
        let in_file = vec![host("node1", 4), host("node2", 2), host("node3", 1)];
        for (options, named, left) in [
            (&["-n", "4"][..], vec![], &[][..]),
            (&["-np", "4", "--bind-to", "none"], vec![], &["--bind-to", "none"][..]),
            (&["--host", "a:2,b", "-n", "3"], vec![host("a", 2), host("b", 1)], &[]),
            (&["-x", "A", "--hostfile", file], in_file, &["-x", "A"]),
        ] {
            let options: Vec<OsString> = options.iter().map(OsString::from).collect();
            let hosts = Hosts::of(JobLauncher::Mpirun, &options, 4).unwrap();
            assert_eq!(hosts.named, named, "{options:?}");
            assert_eq!(hosts.options, left, "{options:?}");
        }
        assert!(Hosts::of(JobLauncher::Mpirun, &["--host".into()], 4).is_err());
    }

    #[test]
    fn a_command_names_the_hosts_that_answer() {
        let options: Vec<OsString> = ["--host", "a:2,b:2", "-x", "A", "-n", "4"].map(OsString::from).to_vec();
        let hosts = Hosts::of(JobLauncher::Mpirun, &options, 4).unwrap();
        let program = Path::new("plimsoll");
        let command = hosts.command(program, &[host("b", 2)], 2);
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words, ["-x", "A", "--host", "b:2", "-n", "2", "plimsoll"]);
        let alone = Hosts::of(JobLauncher::Mpirun, &[], 4).unwrap();
        assert_eq!(alone.answering().iter().map(|host| host.slots).sum::<usize>(), 4);
        let command = alone.command(program, &alone.answering(), 3);
        let words: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
        assert_eq!(words, ["-n", "3", "plimsoll"]);
        let threads = Hosts::of(JobLauncher::Threads, &[], 4).unwrap();
        let command = threads.command(program, &threads.answering(), 4);
        assert!(command.get_program() == "plimsoll" && command.get_args().next().is_none());
        let refused = Hosts::of(JobLauncher::Threads, &options, 4).unwrap_err();
        assert!(refused.to_string().starts_with("--host: with threads"), "{refused}");
    }
}
