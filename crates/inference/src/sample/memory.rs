//! Memory of sampling: planned on Meta before anything is allocated, and compared with actual use.

use collective::{Axis, Communicator};
use generation::{Generator, GeneratorBytes, GeneratorOptions};
use serde::Serialize;
use telemetry::units::bytes;
use worker::Setup;

use run::{Result, RunError};

/// Generator memory of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankMemory {
    /// Planned memory.
    pub planned: GeneratorBytes,
    /// Memory that was used; `None` if only planned.
    pub used: Option<GeneratorBytes>,
}

/// Plans every rank; ranks of the same pipeline stage are equal.
///
/// # Errors
/// A rank does not fit.
pub(super) fn plan(setup: &Setup, options: GeneratorOptions) -> Result<Vec<RankMemory>> {
    let imitated = plan::roles::imitation(setup)?.on_meta();
    let shape = setup.config.parallel.grid();
    let world_size = shape.world_size();
    let mut by_stage: Vec<Option<GeneratorBytes>> = vec![None; shape.size(Axis::Pipeline)];
    let rank = |rank: usize| -> Result<RankMemory> {
        let grid = shape.seen_from(rank).map_err(worker::WorkerError::from)?;
        let entry = &mut by_stage[grid.coordinate(Axis::Pipeline)];
        let planned = match *entry {
            Some(planned) => planned,
            None => {
                let communicator = Communicator::counted(rank, world_size);
                let generator = Generator::new(&imitated, communicator, options, None);
                let generator = generator.map_err(|error| match error.is_out_of_memory() {
                    true => RunError::Refused(format!("sampling does not fit: {error}")),
                    false => error.into(),
                })?;
                *entry.insert(generator.bytes())
            }
        };
        Ok(RankMemory { planned, used: None })
    };
    (0..world_size).map(rank).collect()
}

/// Adds the memory used by each rank to its plan, on every rank. Logs differences.
pub(super) fn compare(generator: &mut Generator, planned: &[RankMemory]) -> Result<Vec<RankMemory>> {
    let used = serde_json::to_vec(&generator.bytes()).unwrap_or_default();
    let all = generator.groups().control().all_gather(&used).map_err(worker::WorkerError::from)?;
    let rank = |(planned, used): (&RankMemory, &Vec<u8>)| RankMemory {
        used: serde_json::from_slice(used).ok(),
        ..planned.clone()
    };
    let memory: Vec<_> = planned.iter().zip(&all).map(rank).collect();
    for (rank, memory) in memory.iter().enumerate() {
        if let Some(used) = memory.used.filter(|used| *used != memory.planned) {
            tracing::warn!("rank {rank} used other memory than planned: {used:?}, not {:?}", memory.planned);
        }
    }
    Ok(memory)
}

impl RankMemory {
    /// Describes the memory as a sentence.
    #[must_use]
    pub fn in_words(&self) -> String {
        let GeneratorBytes { weights, cache, peak_allocated, peak_reserved } = self.planned;
        let used = match self.used {
            Some(used) if used == self.planned => ", as planned",
            Some(_) => ", not as planned",
            None => ", planned",
        };
        let [weights, cache] = [weights, cache].map(bytes);
        let shown = self
            .used
            .map_or([peak_allocated, peak_reserved], |used| [used.peak_allocated, used.peak_reserved]);
        let [allocated, reserved] = shown.map(bytes);
        format!("weights {weights}, cache {cache}, peak allocated {allocated}, reserved {reserved}{used}")
    }
}
