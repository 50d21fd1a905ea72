//! Virtual ranges of expandable segments.

/// A reserved virtual range. Its blocks, mapped or not, tile it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) page: u64,
}
