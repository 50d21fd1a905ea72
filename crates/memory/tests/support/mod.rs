//! Random operations on an allocator, and a driver that fails on demand.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use memory::drivers::Counting;
use memory::{
    Allocation, AllocationError, Allocator, Capacity, Category, EventId, Placement, PoolId, RawError,
    RawMemory, Settings, Stream, StreamFilter, Tag,
};
use proptest::prelude::*;

/// A counting device whose calls can be made to fail.
pub(crate) struct Failing {
    device: Rc<RefCell<Counting>>,
    /// Number of calls until the next failure; `None`: no failure.
    pub(crate) fails_in: Option<u32>,
    /// Whether the failure is out of memory, for calls that can return it.
    pub(crate) out_of_memory: bool,
}

impl Failing {
    pub(crate) fn new(total: u64) -> Failing {
        Failing { device: Rc::new(RefCell::new(Counting::new(total))), fails_in: None, out_of_memory: false }
    }

    pub(crate) fn device(&self) -> RefMut<'_, Counting> {
        self.device.borrow_mut()
    }

    fn call(&mut self, may_be_full: bool) -> Result<(), RawError> {
        let Some(left) = self.fails_in else { return Ok(()) };
        if left > 0 {
            self.fails_in = Some(left - 1);
            return Ok(());
        }
        self.fails_in = None;
        if may_be_full && self.out_of_memory {
            return Err(RawError::OutOfMemory);
        }
        Err(RawError::Driver { code: 999, text: "asked to fail".to_owned() })
    }
}

impl RawMemory for Failing {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        self.call(true)?;
        self.device().allocate(bytes, stream)
    }
    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        self.call(false)?;
        self.device().free(address, bytes)
    }
    fn reserve(&mut self, bytes: u64, stream: Stream) -> Result<Placement, RawError> {
        self.call(true)?;
        self.device().reserve(bytes, stream)
    }
    fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        self.call(false)?;
        self.device().unreserve(address, bytes)
    }
    fn map(&mut self, address: u64, bytes: u64, page: u64, stream: Stream) -> Result<(), RawError> {
        self.call(true)?;
        self.device().map(address, bytes, page, stream)
    }
    fn unmap(&mut self, address: u64, bytes: u64, page: u64) -> Result<(), RawError> {
        self.call(false)?;
        self.device().unmap(address, bytes, page)
    }
    fn capacity(&self) -> Capacity {
        self.device().capacity()
    }
    fn record_event(&mut self, stream: Stream) -> Result<EventId, RawError> {
        self.call(false)?;
        self.device().record_event(stream)
    }
    fn event_done(&mut self, event: EventId) -> Result<bool, RawError> {
        self.call(false)?;
        self.device().event_done(event)
    }
    fn event_wait(&mut self, event: EventId) -> Result<(), RawError> {
        self.call(false)?;
        self.device().event_wait(event)
    }
}

/// One random operation. Blocks are chosen by a number modulo the number of live blocks.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Allocate(u64, u64, usize),
    Free(usize),
    RecordStream(usize, u64),
    Finish(u64),
    EmptyCache,
    Configure(String),
    Limit(Option<u64>),
    Others(u64),
    ResetPeak,
    ResetAccumulated,
    BeginPool(u64, Option<u64>),
    EndPool(u64),
    ReleasePool(u64),
    FlushPool(u64),
    NoSplit(u64),
    UseOnOom(u64, bool),
    FailIn(u32, bool),
}

const POOLS: u64 = 3;
const STREAMS: u64 = 4;

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        1u64..2000,
        1u64..(1 << 20),
        Just(1 << 20),
        ((1u64 << 20) + 1)..(10 << 20),
        (10u64 << 20)..(60 << 20),
        (60u64 << 20)..(300 << 20),
    ]
}

/// Generates settings, each key optional.
pub(crate) fn settings() -> impl Strategy<Value = String> {
    let some = |values: &'static [&'static str]| prop::sample::select(values);
    (
        some(&["", "large_segment_size_mb:12", "large_segment_size_mb:32"]),
        some(&["", "max_split_size_mb:40", "max_split_size_mb:100"]),
        some(&["", "max_non_split_rounding_mb:60"]),
        some(&["", "garbage_collection_threshold:0.3", "garbage_collection_threshold:0.8"]),
        some(&["", "roundup_power2_divisions:4", "roundup_power2_divisions:[1:2,8:4,>:8]"]),
        some(&["expandable_segments:False", "expandable_segments:True"]),
    )
        .prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].join(","))
}

/// Generates an operation; with `failures`, also operations that make the driver fail.
pub(crate) fn operation(failures: bool) -> impl Strategy<Value = Operation> {
    let pool = 1..=POOLS;
    let usual = prop_oneof![
        12 => (size(), 0..STREAMS, 0..Category::ALL.len()).prop_map(|(n, s, c)| Operation::Allocate(n, s, c)),
        9 => any::<usize>().prop_map(Operation::Free),
        2 => (any::<usize>(), 0..STREAMS).prop_map(|(b, s)| Operation::RecordStream(b, s)),
        2 => (0..STREAMS).prop_map(Operation::Finish),
        1 => Just(Operation::EmptyCache),
        1 => settings().prop_map(Operation::Configure),
        1 => prop::option::of((64u64 << 20)..(1 << 30)).prop_map(Operation::Limit),
        1 => (0u64..(700 << 20)).prop_map(Operation::Others),
        1 => Just(Operation::ResetPeak),
        1 => Just(Operation::ResetAccumulated),
    ];
    let private = prop_oneof![
        (pool.clone(), prop::option::of(0..STREAMS)).prop_map(|(p, s)| Operation::BeginPool(p, s)),
        pool.clone().prop_map(Operation::EndPool),
        pool.clone().prop_map(Operation::ReleasePool),
        pool.clone().prop_map(Operation::FlushPool),
        pool.clone().prop_map(Operation::NoSplit),
        (pool, any::<bool>()).prop_map(|(p, on)| Operation::UseOnOom(p, on)),
    ];
    let fail = (0u32..4, any::<bool>()).prop_map(|(n, oom)| Operation::FailIn(n, oom));
    prop_oneof![
        20 => usual,
        2 => private,
        (if failures { 4 } else { 1 }) =>
            fail.prop_map(move |f| if failures { f } else { Operation::ResetPeak }),
    ]
}

/// An allocator and its allocated blocks.
pub(crate) struct World {
    pub(crate) allocator: Allocator<Failing>,
    pub(crate) alive: Vec<Allocation>,
}

impl World {
    pub(crate) fn new(settings: &str, total: u64) -> World {
        let allocator = Allocator::new(Failing::new(total), Settings::parse(settings).unwrap()).unwrap();
        World { allocator, alive: Vec::new() }
    }

    /// Executes one operation, which may fail. The caller checks the state afterwards.
    pub(crate) fn apply(&mut self, operation: &Operation) -> Result<(), AllocationError> {
        let allocator = &mut self.allocator;
        match operation {
            Operation::Allocate(bytes, stream, category) => {
                let tag = Tag::with_category(Category::ALL[*category]);
                self.alive.push(allocator.allocate(*bytes, Stream(*stream), tag)?);
            }
            Operation::Free(choice) if !self.alive.is_empty() => {
                let choice = choice % self.alive.len();
                allocator.free(self.alive[choice].block)?;
                let freed = self.alive.swap_remove(choice);
                assert!(matches!(allocator.free(freed.block), Err(AllocationError::InvalidBlock { .. })));
            }
            Operation::RecordStream(choice, stream) if !self.alive.is_empty() => {
                allocator.record_stream(self.alive[choice % self.alive.len()].block, Stream(*stream))?;
            }
            Operation::Free(_) | Operation::RecordStream(..) => {}
            Operation::Finish(stream) => allocator.raw_mut().device().finish(Stream(*stream)),
            Operation::EmptyCache => allocator.empty_cache()?,
            Operation::Configure(text) => allocator.configure(text)?,
            Operation::Limit(limit) => allocator.set_limit_bytes(*limit),
            Operation::Others(bytes) => allocator.raw_mut().device().set_others(*bytes),
            Operation::ResetPeak => allocator.reset_peak(),
            Operation::ResetAccumulated => allocator.reset_accumulated(),
            Operation::BeginPool(pool, stream) => {
                let filter = stream.map_or(StreamFilter::All, |s| StreamFilter::Only(vec![Stream(s)]));
                allocator.begin_pool(PoolId(0, *pool), filter)?;
            }
            Operation::EndPool(pool) => allocator.end_pool(PoolId(0, *pool))?,
            Operation::ReleasePool(pool) => allocator.release_pool_user(PoolId(0, *pool))?,
            Operation::FlushPool(pool) => allocator.flush_pool(PoolId(0, *pool))?,
            Operation::NoSplit(pool) => allocator.set_no_split(PoolId(0, *pool)),
            Operation::UseOnOom(pool, on) => allocator.set_use_on_oom(PoolId(0, *pool), *on),
            Operation::FailIn(calls, out_of_memory) => {
                allocator.raw_mut().fails_in = Some(*calls);
                allocator.raw_mut().out_of_memory = *out_of_memory;
            }
        }
        Ok(())
    }

    /// Returns the device, which outlives the allocator.
    pub(crate) fn device(&self) -> Rc<RefCell<Counting>> {
        Rc::clone(&self.allocator.raw().device)
    }

    /// Closes and releases every pool, frees every block and empties the cache.
    pub(crate) fn drop_everything(&mut self) {
        self.allocator.raw_mut().fails_in = None;
        for pool in (1..=POOLS).map(|pool| PoolId(0, pool)) {
            let _ = self.allocator.end_pool(pool);
            while self.allocator.release_pool_user(pool).is_ok() {}
        }
        for allocation in self.alive.drain(..) {
            self.allocator.free(allocation.block).unwrap();
        }
        self.allocator.empty_cache().unwrap();
    }
}
