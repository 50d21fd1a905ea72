//! Reports of a rank's memory for browsers and PyTorch's viewers: `memory/rank-N.*` in the run directory.

use std::path::Path;

use telemetry::memory_views::{memory_summary, picture, snapshot_pickle};
use telemetry::run_files::atomic_write;

use crate::error::{Result, RunError};
use crate::failure::summarized;
use worker::Worker;

/// A file with a memory report.
pub(crate) struct View {
    name: String,
    bytes: Vec<u8>,
}

/// Returns the rank's memory table (`.txt`), its snapshot for PyTorch's memory viewer (`.pickle`) and a chart
/// for browsers (`.html`).
pub(crate) fn memory_views(worker: &Worker) -> Vec<View> {
    let rank = worker.grid().rank();
    let name = summarized(worker.device(), rank);
    let (table, snapshot) = worker.device().with_allocator(|allocator| {
        let fragmentation = allocator.fragmentation();
        let mut table = memory_summary(allocator.statistics(), name, false);
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
    let view = |ending: &str, bytes: Vec<u8>| View { name: format!("rank-{rank}.{ending}"), bytes };
    vec![
        view("txt", table.into_bytes()),
        view("pickle", snapshot_pickle(&snapshot)),
        view("html", picture(&snapshot, &format!("Memory of rank {rank}")).into_bytes()),
    ]
}

/// Writes the files to `run_dir`.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write(views: &[View], run_dir: &Path) -> Result<()> {
    if views.is_empty() {
        return Ok(());
    }
    let directory = run_dir.join("memory");
    std::fs::create_dir_all(&directory)
        .map_err(|source| RunError::File { path: directory.clone(), source })?;
    for View { name, bytes } in views {
        atomic_write(&directory.join(name), bytes)?;
    }
    Ok(())
}
