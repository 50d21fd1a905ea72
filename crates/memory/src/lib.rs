//! The caching allocator.
//!
//! The allocator takes memory from a driver in large segments, cuts them into blocks, and keeps freed blocks
//! to hand them out again. It behaves as PyTorch's native CUDA caching allocator does, counter for counter,
//! so that a run's allocated and reserved bytes are reported in the vocabulary that PyTorch's users know.
//!
//! **The one idea**: the allocator is arithmetic. The driver below it is the trait [`RawMemory`], so the same
//! code runs over a GPU, over host memory, over addresses without memory, and over a recording of another
//! allocator ([`replay`]). It knows no device and no thread, and never reads or writes the memory.
//!
//! ```
//! use memory::drivers::Counting;
//! use memory::{Allocator, Category, Settings, Stream, Tag};
//!
//! let mut allocator = Allocator::new(Counting::new(1 << 30), Settings::default())?;
//! let weights = allocator.allocate(4 << 20, Stream(0), Tag::with_category(Category::Parameter))?;
//! let more = allocator.allocate(16 << 20, Stream(0), Tag::default())?;
//! assert_eq!(allocator.statistics().allocated(), 20 << 20);
//! assert_eq!(allocator.statistics().reserved(), 20 << 20);
//!
//! allocator.free(weights.block)?;
//! allocator.free(more.block)?;
//! assert_eq!(allocator.statistics().reserved(), 20 << 20); // kept for the next request
//! allocator.empty_cache()?;
//! assert_eq!(allocator.statistics().get("reserved_bytes.all.current"), Some(0));
//! # Ok::<(), memory::AllocationError>(())
//! ```
#![forbid(unsafe_code)]

mod allocator;
mod block;
pub mod drivers;
mod error;
mod free_list;
mod hash_order;
mod history;
mod pool;
mod raw;
pub mod replay;
mod script;
mod settings;
mod size;
mod statistics;
mod tag;

pub use allocator::{
    Allocation, Allocator, BlockInfo, BlockPosition, BlockState, Fragmentation, Snapshot, SnapshotBlock,
    SnapshotSegment, Usage,
};
pub use block::BlockId;
pub use error::{AllocationError, Bytes, OutOfMemory};
pub use history::{Action, Event};
pub use pool::{PoolId, StreamFilter};
pub use raw::{Capacity, EventId, Placement, RawError, RawMemory, Stream};
pub use script::{Script, ScriptEnd};
pub use settings::{ENVIRONMENT, Settings, SettingsError};
pub use size::{
    DEFAULT_LARGE_SEGMENT, LARGE_ROUNDING, MIN_BLOCK, MIN_LARGE_ALLOCATION, REQUEST_LIMIT, SMALL_SEGMENT,
    SMALL_SIZE,
};
pub use statistics::{Metric, PoolKind, Statistic, Statistics};
pub use tag::{Category, CategoryBytes, Label, Labels, Tag};
