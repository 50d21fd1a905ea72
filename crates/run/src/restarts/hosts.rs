//! The hosts of a job: a query for those that answer, and the launcher's command for a selection.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::task::Poll;
use std::thread::sleep;
use std::time::{Duration, Instant};

use system::environment;

use super::hostfile;
use super::named_host::{CORE_FILES, NamedHost, Slots, cores, own_cores};
use super::own_host::are_own;
use super::question::Question;
use crate::error::{Result, RunError};
use telemetry::host_name;

/// Time limit for a host to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Polling interval for answers.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of ranks on a host.
const MOST_RANKS: u64 = 1 << 20;

/// How ranks are started on hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobLauncher {
    /// Open MPI's `mpirun`, or a launcher with the same options.
    Mpirun,
    /// Slurm's `srun`, inside an allocation.
    Srun,
    /// No launcher: one process of this host, whose threads are the ranks.
    Threads,
}

/// A host that answers, and the number of ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) slots: usize,
}

/// Split of a job's hosts into answering and silent ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answers {
    /// The hosts that answer.
    pub(super) hosts: Vec<Host>,
    /// Names of the hosts that do not answer.
    pub(super) silent: Vec<String>,
}

/// The hosts of a job, and the launcher with its other options.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    launcher: JobLauncher,
    /// Each named host, and whether it is this host. If empty, this host runs all ranks.
    named: Vec<(NamedHost, bool)>,
    /// Number of ranks on this host if no host is named.
    slots: usize,
    /// The launcher's options, without those that select hosts or numbers of ranks.
    options: Vec<OsString>,
}

impl Hosts {
    /// Reads hosts from the launcher's options, or from the variables of Slurm's allocation. If none are
    /// named, this host takes `ranks` ranks.
    ///
    /// # Errors
    /// An option is unknown or lacks its value, it asks for another number of ranks, or hosts cannot be read.
    pub(super) fn from_options(launcher: JobLauncher, options: &[OsString], ranks: usize) -> Result<Self> {
        let hosts = Hosts { launcher, named: Vec::new(), slots: ranks, options: Vec::new() };
        if launcher == JobLauncher::Srun {
            return Ok(Hosts { options: options.to_vec(), ..hosts.with(allocated(ranks)?) });
        }
        if let (JobLauncher::Threads, Some(option)) = (launcher, options.first()) {
            let option = option.to_string_lossy();
            return Err(RunError::Refused(format!(
                "{option}: with threads there is no launcher to take options; parallel.data and other keys \
                 set the number of ranks"
            )));
        }
        let mut in_files = Vec::new();
        let mut in_options = String::new();
        let mut others = Vec::new();
        let mut words = options.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let (option, joined) = match text.split_once('=') {
                Some((option, value)) if option.starts_with('-') => (option, Some(value.to_owned())),
                _ => (&*text, None),
            };
            let mut value = || {
                let next = || words.next().map(|value| value.to_string_lossy().into_owned());
                let missing = || RunError::Refused(format!("{option}: its value is missing"));
                joined.clone().or_else(next).ok_or_else(missing)
            };
            match option.strip_prefix("--").or_else(|| option.strip_prefix('-')).unwrap_or_default() {
                "n" | "np" | "c" => check_ranks(option, &value()?, ranks)?,
                "host" | "H" => in_options = [in_options, value()?].join(","),
                "hostfile" | "machinefile" => in_files.extend(hostfile::in_file(Path::new(&value()?))?),
                _ => others.push(word.clone()),
            }
        }
        Ok(Hosts { options: others, ..hosts.with(of_both(in_files, in_options.trim_start_matches(','))?) })
    }

    fn with(self, named: Vec<NamedHost>) -> Self {
        let own = are_own(named.iter().map(|host| host.name.as_str()));
        Hosts { named: named.into_iter().zip(own).collect(), ..self }
    }

    /// Queries all hosts at once. Returns which of them answer.
    pub(super) fn answers(&self) -> Answers {
        if self.named.is_empty() {
            return Answers {
                hosts: vec![Host { name: host_name(), slots: self.slots }],
                silent: Vec::new(),
            };
        }
        let mut asked: Vec<_> = self.named.iter().map(|(host, is_own)| self.ask(host, *is_own)).collect();
        let began = Instant::now();
        let mut answers = vec![Poll::Pending; asked.len()];
        while answers.contains(&Poll::Pending) && began.elapsed() < ANSWER {
            for (question, answer) in asked.iter_mut().zip(&mut answers) {
                *answer = question.answer();
            }
            sleep(LOOK);
        }
        asked.iter_mut().for_each(Question::end);
        let mut all = Answers::default();
        for ((host, _), answer) in self.named.iter().zip(answers) {
            match answer {
                Poll::Ready(Some(slots)) => all.hosts.push(Host { name: host.name.clone(), slots }),
                Poll::Ready(None) | Poll::Pending => all.silent.push(host.name.clone()),
            }
        }
        all
    }

    /// Returns the command that starts `ranks` ranks of `program` on these hosts. The caller appends the
    /// program's arguments.
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

    /// Deletes a directory on the other hosts, where they answer.
    pub(super) fn remove(&self, directory: &Path) {
        let others = self.named.iter().filter(|(_, is_own)| !is_own);
        let remove = |(host, _): &(NamedHost, bool)| {
            let mut command = self.command_on(&host.name);
            command.args(["rm", "-rf", "--"]).arg(directory);
            Question::asked(command, 0)
        };
        let mut removing: Vec<_> = others.map(remove).collect();
        let began = Instant::now();
        while removing.iter_mut().any(|removal| removal.answer().is_pending()) && began.elapsed() < ANSWER {
            sleep(LOOK);
        }
        removing.iter_mut().for_each(Question::end);
    }

    /// Starts a query for the number of ranks that a host takes.
    fn ask(&self, host: &NamedHost, is_own: bool) -> Question {
        match (host.slots, is_own) {
            (Slots::Count(slots), true) => Question::Answered(Some(slots)),
            (Slots::Cores, true) => Question::Answered(Some(own_cores())),
            (Slots::Count(slots), false) => {
                let mut command = self.command_on(&host.name);
                command.arg("true");
                Question::asked(command, slots)
            }
            (Slots::Cores, false) => {
                let mut command = self.command_on(&host.name);
                command.arg("cat").args(CORE_FILES);
                Question::read(command, cores)
            }
        }
    }

    /// Returns a command prefix that runs its arguments on another host.
    fn command_on(&self, host: &str) -> Command {
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
        command
    }
}

/// Checks the number of ranks in a launcher's option.
///
/// # Errors
/// The number differs from the configured `ranks`.
fn check_ranks(option: &str, value: &str, ranks: usize) -> Result<()> {
    if value.trim().parse() == Ok(ranks) {
        return Ok(());
    }
    Err(RunError::Refused(format!(
        "{option} {value}: the configuration has {ranks} ranks; with --restarts the hosts that answer decide \
         how many of them start, so leave it out"
    )))
}

/// Combines the hosts of files with the option `--host`, which selects from the files' hosts.
///
/// # Errors
/// mpirun would refuse a host, or no file names it.
fn of_both(in_files: Vec<NamedHost>, in_options: &str) -> Result<Vec<NamedHost>> {
    if in_options.is_empty() {
        return Ok(in_files);
    }
    let refused = |why: String| RunError::Refused(format!("--host {in_options}: {why}"));
    let mut picked = hostfile::in_option(in_options).map_err(refused)?;
    for host in picked.iter_mut().filter(|_| !in_files.is_empty()) {
        let Some(in_file) = in_files.iter().find(|in_file| in_file.name == host.name) else {
            return Err(refused(format!("the hostfile does not name {}", host.name)));
        };
        host.slots = host.slots.at_most(in_file.slots);
    }
    Ok(picked)
}

/// Returns the remote shell command with which Open MPI reaches another host, `ssh` by default.
fn agent() -> Command {
    let named = environment::text("OMPI_MCA_plm_rsh_agent").unwrap_or_else(|| "ssh".to_owned());
    let mut words = named.split(':').next().unwrap_or("ssh").split_whitespace();
    let program = words.next().unwrap_or("ssh");
    let mut command = Command::new(program);
    command.args(words);
    if Path::new(program).file_name() == Some(OsStr::new("ssh")) {
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]);
    }
    command
}

/// Returns the hosts of Slurm's allocation. They share `ranks` ranks equally if Slurm sets no number for
/// each.
///
/// # Errors
/// There is no allocation.
fn allocated(ranks: usize) -> Result<Vec<NamedHost>> {
    let refused = || {
        RunError::Refused(
            "--with srun: there is no allocation of Slurm, whose hosts scontrol names".to_owned(),
        )
    };
    let list = environment::text("SLURM_JOB_NODELIST").ok_or_else(refused)?;
    let output =
        Command::new("scontrol").args(["show", "hostnames", &list]).output().map_err(|_| refused())?;
    let names: Vec<String> =
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect();
    if names.is_empty() {
        return Err(refused());
    }
    let name = "SLURM_NTASKS_PER_NODE";
    let each = environment::text(name).map(|tasks| environment::number(name, &tasks, 1..=MOST_RANKS));
    let each = each.transpose().map_err(RunError::Refused)?.and_then(|each| usize::try_from(each).ok());
    let slots = Slots::Count(each.unwrap_or_else(|| ranks.div_ceil(names.len())));
    Ok(names.into_iter().map(|name| NamedHost { name, slots }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: usize) -> Host {
        Host { name: name.to_owned(), slots }
    }

    fn named(name: &str, slots: usize) -> NamedHost {
        NamedHost { name: name.to_owned(), slots: Slots::Count(slots) }
    }

    #[test]
    fn hosts_are_read_from_the_launchers_options() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts");
        std::fs::write(&file, "# two hosts\nnode1.invalid slots = 4\nnode2.invalid:2 # the second\n")
            .unwrap();
        let file = file.to_str().unwrap();
        let joined = format!("--hostfile={file}");
        let in_file = vec![named("node1.invalid", 4), named("node2.invalid", 2)];
        for (options, expected, left) in [
            (&["-n", "4"][..], vec![], &[][..]),
            (&["-np", "4", "--bind-to", "none"], vec![], &["--bind-to", "none"][..]),
            (
                &["--host", "a.invalid:2,b.invalid", "--n", "4"],
                vec![named("a.invalid", 2), named("b.invalid", 1)],
                &[],
            ),
            (
                &["-H", "a.invalid", "-host", "b.invalid"],
                vec![named("a.invalid", 1), named("b.invalid", 1)],
                &[],
            ),
            (&["-x", "A", "--hostfile", file], in_file.clone(), &["-x", "A"]),
            (&[&joined], in_file, &[]),
            // --host picks among the hosts of the file.
            (&["--hostfile", file, "--host", "node1.invalid:3"], vec![named("node1.invalid", 3)], &[]),
            (&["--hostfile", file, "--host", "node2.invalid:3"], vec![named("node2.invalid", 2)], &[]),
            (&["--hostfile", file, "--host", "node2.invalid:auto"], vec![named("node2.invalid", 2)], &[]),
        ] {
            let options: Vec<OsString> = options.iter().map(OsString::from).collect();
            let hosts = Hosts::from_options(JobLauncher::Mpirun, &options, 4).unwrap();
            let read: Vec<_> = hosts.named.iter().map(|(host, is_own)| (host.clone(), *is_own)).collect();
            let expected: Vec<_> = expected.into_iter().map(|host| (host, false)).collect();
            assert_eq!(read, expected, "{options:?}");
            assert_eq!(hosts.options, left, "{options:?}");
        }
        for (options, words) in [
            (&["--host"][..], "--host: its value is missing"),
            (&["-n", "3"], "-n 3: the configuration has 4 ranks"),
            (&["-np", "four"], "-np four: the configuration has 4 ranks"),
            (&["--host", "me@a"], "--host me@a: me@a: it names a user"),
            (&["--hostfile", file, "--host", "c.invalid"], "the hostfile does not name c.invalid"),
            (&["--hostfile", "missing"], "missing: cannot read it"),
        ] {
            let options: Vec<OsString> = options.iter().map(OsString::from).collect();
            let refused = Hosts::from_options(JobLauncher::Mpirun, &options, 4).unwrap_err();
            assert!(refused.exit_status() == 2 && refused.to_string().contains(words), "{refused}");
        }
    }

    /// This host is recognised under all its names and is not queried over the network.
    #[test]
    fn this_host_answers_itself() {
        let own = ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", &host_name()].join(":2,") + ":2";
        let hosts = Hosts::from_options(JobLauncher::Mpirun, &["--host".into(), own.into()], 4).unwrap();
        assert!(hosts.named.iter().all(|(_, is_own)| *is_own), "{hosts:?}");
        let answers = hosts.answers();
        assert!(answers.silent.is_empty() && answers.hosts.iter().all(|host| host.slots == 2), "{answers:?}");
    }

    #[test]
    fn a_command_names_the_hosts_that_answer() {
        let options: Vec<OsString> =
            ["--host", "a.invalid:2,b.invalid:2", "-x", "A", "-n", "4"].map(OsString::from).to_vec();
        let hosts = Hosts::from_options(JobLauncher::Mpirun, &options, 4).unwrap();
        let program = Path::new("plimsoll");
        let command = hosts.command(program, &[host("b.invalid", 2)], 2);
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words, ["-x", "A", "--host", "b.invalid:2", "-n", "2", "plimsoll"]);
        let alone = Hosts::from_options(JobLauncher::Mpirun, &[], 4).unwrap();
        assert_eq!(alone.answers().hosts.iter().map(|host| host.slots).sum::<usize>(), 4);
        let command = alone.command(program, &alone.answers().hosts, 3);
        let words: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
        assert_eq!(words, ["-n", "3", "plimsoll"]);
        let threads = Hosts::from_options(JobLauncher::Threads, &[], 4).unwrap();
        let command = threads.command(program, &threads.answers().hosts, 4);
        assert!(command.get_program() == "plimsoll" && command.get_args().next().is_none());
        let refused = Hosts::from_options(JobLauncher::Threads, &options, 4).unwrap_err();
        assert!(refused.to_string().starts_with("--host: with threads"), "{refused}");
    }
}
