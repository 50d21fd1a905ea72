//! Views of a rank's memory for people and for PyTorch's viewers: `memory/rank-N.*` in the run directory.

use std::path::Path;

use telemetry::memory_views::{memory_summary, picture, snapshot_pickle};
use telemetry::run_files::atomic_write;

use crate::error::{Result, RunError};
use crate::failure::summarized;
use worker::Worker;

/// Writes the rank's table (`.txt`), its snapshot for PyTorch's memory viewer (`.pickle`) and a picture for a
/// browser (`.html`). Errors: a file that cannot be written.
pub(crate) fn write(worker: &Worker, run_dir: &Path) -> Result<()> {
    let rank = worker.grid().rank();
    let directory = run_dir.join("memory");
    std::fs::create_dir_all(&directory)
        .map_err(|source| RunError::File { path: directory.clone(), source })?;
    let of = summarized(worker.device(), rank);
    let (table, snapshot) = worker.device().with_allocator(|allocator| {
        let fragmentation = allocator.fragmentation();
        let mut table = memory_summary(allocator.statistics(), of, false);
        table += &format!(
            "reserved over allocated {:.4}\ninactive split bytes {}\nbytes lost to rounding {}\n\
             largest idle block {}\n",
            fragmentation.reserved_over_allocated(),
            fragmentation.inactive_split,
            fragmentation.rounding,
            fragmentation.largest_idle
        );
        (table, allocator.snapshot())
    });
    let file = |ending: &str| directory.join(format!("rank-{rank}.{ending}"));
    atomic_write(&file("txt"), table.as_bytes())?;
    atomic_write(&file("pickle"), &snapshot_pickle(&snapshot))?;
    atomic_write(&file("html"), picture(&snapshot, &format!("Memory of rank {rank}")).as_bytes())?;
    Ok(())
}
