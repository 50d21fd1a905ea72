//! Sources of segments, one for each backend.

pub(crate) mod cuda;
pub(crate) mod host;
pub(crate) mod meta;
pub(crate) mod pinned;
