//! Views of an allocator: PyTorch's memory summary, a snapshot for PyTorch's viewers, and an HTML drawing.
//!
//! ```
//! use memory::{Allocator, Category, Settings, Stream, Tag, drivers::Counting};
//! use telemetry::memory_views::{Summarized, memory_summary, picture, snapshot_pickle};
//!
//! let mut allocator = Allocator::new(Counting::new(1 << 30), Settings::default())?;
//! allocator.record_history(10_000);
//! let block = allocator.allocate(4 << 20, Stream(0), Tag::with_category(Category::Activation))?;
//! println!("{}", memory_summary(allocator.statistics(), Summarized::Gpu(0), true));
//!
//! let snapshot = allocator.snapshot();
//! let pickle = snapshot_pickle(&snapshot); // for pytorch.org/memory_viz or torch.cuda._memory_viz
//! let page = picture(&snapshot, "one tensor"); // for a browser
//! assert!(pickle.ends_with(b".") && page.contains("<svg"));
//! # allocator.free(block.block)?;
//! # Ok::<(), memory::AllocationError>(())
//! ```

mod lifetimes;
mod pickle;
mod picture;
mod snapshot;
mod summary;
#[cfg(test)]
mod tests;

pub use picture::picture;
pub use snapshot::snapshot_pickle;
pub use summary::{Summarized, memory_summary};
