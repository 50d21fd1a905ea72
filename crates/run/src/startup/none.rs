//! A build without MPI: no process is a rank of a job.

use std::fmt::Display;
use std::path::Path;

use collective::Communicator;

use crate::error::{JobError, Result, RunError};
use crate::failure::Lost;

/// The job of a process, which does not exist in this build.
#[derive(Debug)]
pub(crate) enum Job {}

impl Job {
    /// Refuses a job that a build with MPI could join. A launcher of one process starts a world of one.
    pub(crate) fn join(processes: usize) -> Result<Option<Self>> {
        if processes == 1 {
            return Ok(None);
        }
        Err(RunError::Refused(format!(
            "a launcher started {processes} processes, and this build has no MPI: build it with \
             `cargo build --release --features mpi`, or start it through `./launch/mpirun -n {processes}`, \
             which does; without a launcher, \
             --ranks {processes} makes the ranks threads of one process"
        )))
    }

    pub(crate) fn rank(&self) -> usize {
        match *self {}
    }

    pub(crate) fn size(&self) -> usize {
        match *self {}
    }

    pub(crate) fn local(&self) -> (usize, usize) {
        (0, 1)
    }

    pub(crate) fn host(&self, _rank: usize) -> String {
        match *self {}
    }

    pub(crate) fn set_doing(&self, _doing: &'static str) {
        match *self {}
    }

    pub(crate) fn all(&mut self, _mine: &str) -> Result<Vec<String>> {
        match *self {}
    }

    pub(crate) fn agree<T, E: JobError>(
        &mut self,
        _mine: std::result::Result<T, E>,
    ) -> (std::result::Result<T, E>, bool) {
        match *self {}
    }

    pub(crate) fn watch(&self, _logs: &Path) -> Result<()> {
        match *self {}
    }

    pub(crate) fn run<T, E: Display>(
        self,
        _timeout_seconds: u64,
        _body: impl FnOnce(Communicator) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, Lost> {
        match self {}
    }

    pub(crate) fn finish(self) -> std::result::Result<(), Lost> {
        match self {}
    }
}
