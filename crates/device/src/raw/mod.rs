//! Where a backend's segments come from.

pub(crate) mod cuda;
pub(crate) mod host;
pub(crate) mod meta;
