//! Start-up of a process: joining a launcher's job, and agreeing with its other processes.
//!
//! Rank 0 prints each error once. If all processes find the error, all exit with its status. If only some
//! find it, the message names the rank and host.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use checkpoint::Share;
use collective::{Communicator, World};
use config::RunConfig;
use plan::RankForm;
use system::numbers::hexadecimal;
use system::{terminal, threads};

use crate::error::{JobError, Result, RunError};
use crate::failure::Lost;
use crate::interrupt::Interrupt;
use crate::run_directory::RunDirectory;
use worker::Setup;

mod facts;
mod job;
mod launcher;

use facts::Facts;
pub(crate) use job::Job;
use launcher::{Environment, Launcher};

/// This process, alone or as a rank of a job.
#[derive(Debug)]
pub struct Startup {
    job: Option<Job>,
}

impl Startup {
    /// Joins the job of this process, if it was started by `mpirun`, `srun`, or a launcher that sets RANK,
    /// WORLD_SIZE and MASTER_ADDR, such as `torchrun`. Must be called once, on the process's first thread.
    ///
    /// # Errors
    /// Ranks do not find each other, or an MPI launcher started a build without MPI.
    pub fn begin() -> Result<Self> {
        let environment = Environment::of_process();
        if let Some(warning) = environment.warning()? {
            terminal::say(&format!("plimsoll: {warning}"));
        }
        // Also where nothing is waited for: a value that is wrong is wrong in the next job, too.
        environment.check_own()?;
        let job = Launcher::of_process()?.map(Job::join).transpose()?.flatten();
        Ok(Startup { job })
    }

    /// Returns the number of processes in this process's job; `None` if no launcher started it.
    #[must_use]
    pub fn launched() -> Option<usize> {
        Launcher::of_process().ok().flatten().map(|launcher| launcher.processes())
    }

    /// Returns the rank that a launcher assigned to this process; `None` without a launcher.
    #[must_use]
    pub fn launched_rank() -> Option<usize> {
        Environment::of_process().rank()
    }

    /// Returns the start-up of a process outside a job.
    pub fn alone() -> Self {
        Startup { job: None }
    }

    /// Returns this process's rank; 0 outside a job.
    pub fn rank(&self) -> usize {
        self.job.as_ref().map_or(0, Job::rank)
    }

    /// Returns this process's share of work that the job's processes divide among them.
    pub fn share(&self) -> Share {
        let alone = Share::ALL;
        self.job.as_ref().map_or(alone, |job| Share { index: job.rank(), of: job.size() })
    }

    /// Returns (this rank's index on its host, number of ranks on the host).
    pub(crate) fn local(&self) -> (usize, usize) {
        self.job.as_ref().map_or((0, 1), Job::local)
    }

    /// Returns the host name of each rank; empty outside a job.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        let of_job = |job: &Job| (0..job.size()).map(|rank| job.host(rank)).collect();
        self.job.as_ref().map_or_else(Vec::new, of_job)
    }

    /// Returns whether the process is a rank of a job.
    #[must_use]
    pub fn is_in_job(&self) -> bool {
        self.job.is_some()
    }

    /// Returns whether ranks are threads or processes.
    pub(crate) fn rank_form(&self) -> RankForm {
        self.job.as_ref().map_or(RankForm::Threads, |job| RankForm::Processes { mpi: job.has_mpi() })
    }

    /// Calls `body` as this rank of the job, and waits for all others to end; does nothing outside a job.
    ///
    /// # Errors
    /// `body` fails, here or on another rank.
    pub fn run_job(
        self,
        body: impl FnOnce(&World, Communicator) -> std::result::Result<(), String>,
    ) -> Result<()> {
        self.job.map_or(Ok(()), |job| job.run_plain(body))
    }

    /// Calls `body` as this rank of the job, and waits for all others to end. Returns `None` without calling
    /// it outside a job.
    ///
    /// # Errors
    /// The error of the first rank that failed.
    pub fn run_in_job<T, E: Display>(
        self,
        timeout_seconds: u64,
        body: impl FnOnce(Communicator) -> std::result::Result<T, E>,
    ) -> Result<Option<T>> {
        let Some(job) = self.job else { return Ok(None) };
        let failed = |Lost { rank, reason, .. }| RunError::Rank { rank, reason };
        job.run(timeout_seconds, body).map(Some).map_err(failed)
    }

    /// Waits for all other ranks of the job to end.
    ///
    /// # Errors
    /// The error of the first rank that failed.
    pub fn finish(self) -> Result<()> {
        let failed = |Lost { rank, reason, .. }| RunError::Rank { rank, reason };
        self.job.map_or(Ok(()), |job| job.finish().map_err(failed))
    }

    /// Returns the job; `None` outside a job.
    pub(crate) fn into_job(self) -> Option<Job> {
        self.job
    }

    /// Returns, on all ranks, the run directory opened by rank 0.
    pub(crate) fn share_directory(&mut self, opened: Option<RunDirectory>) -> Result<RunDirectory> {
        let absolute = |opened: &RunDirectory| std::path::absolute(opened.path()).ok();
        let path = opened.as_ref().and_then(absolute).map(|path| digits_of(&path));
        let shared = path_of(&self.of_rank_zero(path.unwrap_or_default())?);
        Ok(opened.unwrap_or_else(|| RunDirectory::of_rank_zero(shared)))
    }

    /// Sets the task named when ranks wait for one another, as in `open its data`.
    pub fn begins(&self, doing: &'static str) {
        if let Some(job) = &self.job {
            job.set_doing(doing);
        }
    }

    /// Returns rank 0's `mine` on all ranks.
    pub(crate) fn of_rank_zero(&mut self, mine: String) -> Result<String> {
        let Some(job) = &mut self.job else { return Ok(mine) };
        Ok(job.all_gather_text(&mine)?.into_iter().next().unwrap_or_default())
    }

    /// Returns the texts of all ranks, in rank order.
    pub(crate) fn of_all(&mut self, mine: &str) -> Result<Vec<String>> {
        let Some(job) = &mut self.job else { return Ok(vec![mine.to_owned()]) };
        job.all_gather_text(mine)
    }

    /// Replaces `message` on all ranks by the message of rank `root`.
    pub(crate) fn broadcast(&mut self, root: usize, message: &mut Vec<u8>) -> Result<()> {
        self.job.as_mut().map_or(Ok(()), |job| job.broadcast(root, message))
    }

    /// Returns a stop request that signals raise.
    ///
    /// # Errors
    /// The system refuses to handle signals.
    pub fn interrupt(&self) -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        interrupt.on_signals(self.job.is_none())?;
        Ok(interrupt)
    }

    /// Returns `mine` if no rank has an error.
    ///
    /// # Errors
    /// Outside a job, the error of `mine`. In a job, that some rank has an error, which rank 0 has already
    /// printed.
    pub fn agree<T, E: JobError>(&mut self, mine: std::result::Result<T, E>) -> std::result::Result<T, E> {
        let Some(job) = &mut self.job else { return mine };
        let (agreed, ends) = job.agree(mine);
        let Err(error) = agreed else { return agreed };
        let status = error.exit_status();
        if !error.is_reported() {
            // Printed before the others end, because the launcher ends this process then.
            terminal::say(&format!("plimsoll: {error}"));
        }
        if ends && let Some(job) = self.job.take() {
            // All ranks call this; a rank that does not changes nothing in what is printed.
            let _ = job.finish();
        }
        Err(RunError::Reported { status }.into())
    }

    /// Checks that the job has the configured number of ranks.
    ///
    /// # Errors
    /// The number differs, or `--ranks` is set as well.
    pub fn check_ranks(&self, config: &RunConfig, threads: Option<usize>) -> Result<()> {
        let world_size = config.world_size();
        let grid = format!("the configuration has {}", config.parallel.grid_in_words());
        match (&self.job, threads) {
            (Some(job), Some(ranks)) => Err(RunError::Refused(format!(
                "--ranks {ranks}: the launcher has started {} processes, which are the ranks",
                job.size()
            ))),
            (Some(job), None) if job.size() != world_size => Err(RunError::Refused(format!(
                "the launcher has started {} processes, and {grid}",
                job.size()
            ))),
            (None, Some(ranks)) if ranks != world_size => {
                Err(RunError::Refused(format!("--ranks {ranks}: {grid}")))
            }
            (None, _) => threads::check_ranks(world_size).map_err(RunError::Refused),
            _ => Ok(()),
        }
    }

    /// Checks that all ranks run the same program with the same `options` on the same configuration and data.
    ///
    /// # Errors
    /// The first difference, with its rank and host.
    pub fn check_same(&mut self, setup: &Setup, options: &str) -> Result<()> {
        let Some(job) = &mut self.job else { return Ok(()) };
        let own = Facts::of_setup(setup, options)?;
        let all: Vec<Facts> =
            job.all_gather_text(&own.encode())?.iter().map(|text| Facts::decode(text)).collect();
        let Some(first) = all.first() else { return Ok(()) };
        let different = |(rank, facts): (usize, &Facts)| Some((rank, first.difference(facts)?));
        match all.iter().enumerate().find_map(different) {
            None => Ok(()),
            Some((rank, what)) => Err(RunError::Refused(format!(
                "rank {rank} on {} has another {what} than rank 0 on {}",
                job.host(rank),
                job.host(0)
            ))),
        }
    }
}

/// Encodes a path in hexadecimal, because a path need not be valid UTF-8.
fn digits_of(path: &Path) -> String {
    hexadecimal(path.as_os_str().as_bytes())
}

/// Decodes a path from hexadecimal.
fn path_of(digits: &str) -> PathBuf {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    PathBuf::from(OsString::from_vec(digits.as_bytes().chunks(2).filter_map(byte).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_bytes_reaches_all_ranks() {
        for bytes in [&b"/runs/caf\xe9"[..], b"/runs/a b\n", b"", b"\xff\xfe"] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            assert_eq!(path_of(&digits_of(&path)), path);
        }
    }
}
