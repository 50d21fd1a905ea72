//! The file of a rank's traces, as gzipped JSON.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use system::file_error::FileContext;
use system::input;

use super::StepTrace;
use crate::error::{Result, Unreadable};
use crate::run_files::atomic_write;

/// A measured step and the same step of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracePair {
    /// The measured step.
    pub measured: Option<StepTrace>,
    /// The planned step; `None` if it equals `measured` or there is no plan.
    planned: Option<StepTrace>,
    is_planned: bool,
}

impl TracePair {
    /// Pairs two traces; equal traces are stored once.
    #[must_use]
    pub fn new(measured: Option<StepTrace>, planned: Option<StepTrace>) -> Self {
        let is_planned = planned.is_some();
        let differs =
            |planned: &StepTrace| !measured.as_ref().is_some_and(|measured| measured.repeats(planned));
        TracePair { planned: planned.filter(differs), measured, is_planned }
    }

    /// Returns the planned step, if there is a plan.
    #[must_use]
    pub fn planned(&self) -> Option<&StepTrace> {
        self.planned.as_ref().or(self.measured.as_ref()).filter(|_| self.is_planned)
    }
}

/// The traces of one rank, stored as a file in the run directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTraces {
    /// The rank.
    pub rank: usize,
    /// A steady step, which all later steps repeat.
    pub steady: TracePair,
    /// The first part of the run whose memory differs from the plan, if any.
    pub diverged: Option<TracePair>,
}

/// Maximum size in bytes of a file, and of its unpacked JSON.
const MOST_PACKED: u64 = 64 << 20;
const MOST: u64 = 256 << 20;

impl RankTraces {
    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_vec(self).context(path, "write to it")?;
        let mut packer = GzEncoder::new(Vec::new(), Compression::default());
        let packed = packer.write_all(&json).and_then(|()| packer.finish()).context(path, "write to it")?;
        atomic_write(path, &packed)
    }

    /// Reads a file written by [`RankTraces::write`].
    ///
    /// # Errors
    /// The file cannot be read or has other content.
    pub fn read(path: &Path) -> Result<Self> {
        let packed = input::read(path, MOST_PACKED).unreadable(path)?;
        let json = input::unpack(&packed, MOST).unreadable(path)?;
        serde_json::from_slice(&json).unreadable(path)
    }
}
