//! Observed behaviour of PyTorch 2.11's allocator, one rule at a time.

mod blocks;
mod expandable;
mod private_pools;
mod refusals;

use memory::drivers::Counting;
use memory::{Allocator, BlockId, Settings, Stream, Tag};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn over(total: u64, settings: &str) -> Allocator<Counting> {
    Allocator::new(Counting::new(total), Settings::parse(settings).unwrap()).unwrap()
}

pub(crate) fn take(allocator: &mut Allocator<Counting>, bytes: u64) -> BlockId {
    take_on(allocator, bytes, 0)
}

pub(crate) fn take_on(allocator: &mut Allocator<Counting>, bytes: u64, stream: u64) -> BlockId {
    allocator.allocate(bytes, Stream(stream), Tag::default()).unwrap().block
}

/// Asserts counters by key; a metric without suffix means its `.all.current`.
#[track_caller]
pub(crate) fn expect(allocator: &Allocator<Counting>, counters: &[(&str, i64)]) {
    for (key, expected) in counters {
        let whole = if key.contains('.') || key.starts_with("num_") {
            (*key).to_owned()
        } else {
            format!("{key}.all.current")
        };
        assert_eq!(allocator.statistics().get(&whole), Some(*expected), "{whole}");
    }
}

#[track_caller]
pub(crate) fn expect_bytes(allocator: &Allocator<Counting>, allocated: u64, reserved: u64, inactive: u64) {
    expect(
        allocator,
        &[
            ("allocated_bytes", allocated as i64),
            ("reserved_bytes", reserved as i64),
            ("inactive_split_bytes", inactive as i64),
        ],
    );
}
