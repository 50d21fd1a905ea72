//! Observed behaviour of PyTorch 2.11's allocator, one rule at a time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use memory::drivers::Counting;
use memory::{
    AllocationError, Allocator, BlockId, BlockState, Category, PoolId, Settings, Stream, StreamFilter, Tag,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn over(total: u64, settings: &str) -> Allocator<Counting> {
    Allocator::new(Counting::new(total), Settings::parse(settings).unwrap()).unwrap()
}

fn take(allocator: &mut Allocator<Counting>, bytes: u64) -> BlockId {
    take_on(allocator, bytes, 0)
}

fn take_on(allocator: &mut Allocator<Counting>, bytes: u64, stream: u64) -> BlockId {
    allocator.allocate(bytes, Stream(stream), Tag::default()).unwrap().block
}

/// Asserts counters by key; a bare metric stands for its `.all.current`.
#[track_caller]
fn expect(allocator: &Allocator<Counting>, counters: &[(&str, i64)]) {
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
fn expect_bytes(allocator: &Allocator<Counting>, allocated: u64, reserved: u64, inactive: u64) {
    expect(
        allocator,
        &[
            ("allocated_bytes", allocated as i64),
            ("reserved_bytes", reserved as i64),
            ("inactive_split_bytes", inactive as i64),
        ],
    );
}

#[test]
fn two_blocks_share_a_segment() {
    let mut a = over(GIB, "");
    let first = take(&mut a, 4 * MIB);
    expect_bytes(&a, 4_194_304, 20_971_520, 16_777_216);
    expect(&a, &[("allocation", 1), ("segment", 1), ("inactive_split", 1), ("num_device_alloc", 1)]);
    let second = take(&mut a, 16 * MIB);
    expect_bytes(&a, 20_971_520, 20_971_520, 0);
    a.free(first).unwrap();
    expect_bytes(&a, 16_777_216, 20_971_520, 4_194_304);
    expect(&a, &[("inactive_split", 1)]);
    a.free(second).unwrap();
    expect_bytes(&a, 0, 20_971_520, 0);
    a.empty_cache().unwrap();
    expect_bytes(&a, 0, 0, 0);
    expect(&a, &[("segment", 0), ("num_sync_all_streams", 1), ("num_device_free", 1)]);
}

#[test]
fn small_blocks_split_and_merge() {
    let mut a = over(GIB, "");
    let first = take(&mut a, 3000);
    expect_bytes(&a, 3072, 2_097_152, 2_094_080);
    expect(&a, &[("requested_bytes", 3000)]);
    let second = take(&mut a, 3000);
    expect_bytes(&a, 6144, 2_097_152, 2_091_008);
    a.free(first).unwrap();
    expect_bytes(&a, 3072, 2_097_152, 2_094_080);
    expect(&a, &[("inactive_split", 2)]);
    a.free(second).unwrap();
    expect_bytes(&a, 0, 2_097_152, 0);
}

#[test]
fn small_and_large_pools_meet_at_a_mebibyte() {
    let mut a = over(GIB, "");
    take(&mut a, 1_048_576);
    expect_bytes(&a, 1_048_576, 2_097_152, 1_048_576);
    take(&mut a, 1_048_577);
    expect(&a, &[("reserved_bytes", 23_068_672), ("allocated_bytes.large_pool.current", 1_049_088)]);
}

#[test]
fn large_blocks_keep_remainders_up_to_a_mebibyte() {
    for (first, second, allocated, inactive) in
        [(10_485_248, 10_485_249, 20_971_520, 0), (11_534_336, 512, 12_583_424, 2_096_640)]
    {
        let mut a = over(GIB, "");
        take(&mut a, first);
        take(&mut a, second);
        expect(&a, &[("allocated_bytes", allocated), ("inactive_split_bytes", inactive)]);
    }
    let mut a = over(GIB, "");
    take(&mut a, 11_533_824);
    expect_bytes(&a, 11_533_824, 12_582_912, 1_049_088);
}

#[test]
fn the_smallest_sufficient_block_is_taken() {
    let mut a = over(GIB, "");
    let blocks = [30, 20, 24].map(|mib| a.allocate(mib * MIB, Stream(0), Tag::default()).unwrap());
    blocks.iter().for_each(|b| a.free(b.block).unwrap());
    assert_eq!(a.allocate(20 * MIB, Stream(0), Tag::default()).unwrap().address, blocks[1].address);
    assert_eq!(a.allocate(19 * MIB, Stream(0), Tag::default()).unwrap().address, blocks[2].address);
    expect_bytes(&a, 39 * MIB, 74 * MIB, 5 * MIB);
    assert_eq!(a.largest_available(Stream(0)), 30 * MIB);
}

#[test]
fn peaks_and_sums_are_reset_separately() {
    let mut a = over(GIB, "");
    let block = a.allocate(10 * MIB, Stream(0), Tag::of(Category::Activation)).unwrap().block;
    a.free(block).unwrap();
    a.allocate(2 * MIB, Stream(0), Tag::of(Category::Parameter)).unwrap();
    expect(&a, &[("allocated_bytes", 2_097_152), ("allocated_bytes.all.peak", 10_485_760)]);
    assert_eq!(a.peak_category_bytes().get(Category::Activation), 10 * MIB);
    assert_eq!(a.peak_category_bytes().get(Category::Parameter), 0);
    a.reset_peak();
    expect(&a, &[("allocated_bytes.all.peak", 2_097_152), ("reserved_bytes.all.peak", 10_485_760)]);
    assert_eq!(a.peak_category_bytes().get(Category::Parameter), 2 * MIB);
    a.reset_accumulated();
    expect(
        &a,
        &[("num_device_alloc", 0), ("allocated_bytes.all.allocated", 0), ("allocated_bytes", 2_097_152)],
    );
}

#[test]
fn streams_do_not_share_blocks() {
    let mut a = over(GIB, "");
    let block = take_on(&mut a, 4 * MIB, 0);
    a.free(block).unwrap();
    take_on(&mut a, 4 * MIB, 1);
    expect(&a, &[("reserved_bytes", 41_943_040), ("segment", 2)]);
}

#[test]
fn a_block_waits_for_the_streams_that_used_it() {
    let mut a = over(GIB, "");
    let block = take(&mut a, 4 * MIB);
    a.record_stream(block, Stream(1)).unwrap();
    a.record_stream(block, Stream(0)).unwrap();
    a.free(block).unwrap();
    expect(
        &a,
        &[("allocated_bytes", 0), ("active_bytes", 4_194_304), ("active", 1), ("requested_bytes", 4_194_304)],
    );
    assert_eq!(a.snapshot().segments[0].blocks[0].state, BlockState::ActivePendingFree);
    take(&mut a, KIB);
    expect(&a, &[("active", 2)]);
    a.raw_mut().finish(Stream(1));
    expect(&a, &[("active", 2)]);
    take(&mut a, KIB);
    expect(&a, &[("active", 2), ("active_bytes", 2048), ("inactive_split_bytes.large_pool.current", 0)]);
    let block = take(&mut a, 4 * MIB);
    a.record_stream(block, Stream(1)).unwrap();
    a.free(block).unwrap();
    a.empty_cache().unwrap();
    expect(&a, &[("active_bytes", 2048), ("reserved_bytes", 2_097_152), ("num_sync_all_streams", 1)]);
}

#[test]
fn large_blocks_stay_whole() {
    let mut a = over(GIB, "max_split_size_mb:100");
    let block = take(&mut a, 200 * MIB);
    expect(&a, &[("oversize_allocations.current", 1), ("oversize_segments.current", 1)]);
    a.free(block).unwrap();
    take(&mut a, 50 * MIB);
    expect(&a, &[("reserved_bytes", 250 * MIB as i64)]);
    let block = take(&mut a, 190 * MIB);
    expect(&a, &[("allocated_bytes", 250 * MIB as i64), ("reserved_bytes", 250 * MIB as i64)]);
    a.free(block).unwrap();
    take(&mut a, 180 * MIB);
    expect(&a, &[("reserved_bytes", 430 * MIB as i64)]);

    let mut a = over(300 * MIB, "max_split_size_mb:100");
    let blocks = [150 * MIB, 100 * MIB].map(|bytes| take(&mut a, bytes));
    blocks.into_iter().for_each(|b| a.free(b).unwrap());
    take(&mut a, 220 * MIB);
    expect(&a, &[("num_device_free", 2), ("num_sync_all_streams", 0), ("num_alloc_retries", 0)]);
}

#[test]
fn expandable_segments_grow_and_shrink_by_pages() {
    let mut a = over(GIB, "expandable_segments:True");
    let small = take(&mut a, 3000);
    expect(&a, &[("reserved_bytes", 2_097_152), ("num_device_alloc", 1), ("segment", 0)]);
    let four = take(&mut a, 4 * MIB);
    expect(&a, &[("allocated_bytes", 4_197_376), ("reserved_bytes", 23_068_672), ("num_device_alloc", 2)]);
    let thirty = take(&mut a, 30 * MIB);
    expect(&a, &[("allocated_bytes", 35_654_656), ("reserved_bytes", 44_040_192), ("num_device_alloc", 3)]);
    a.free(four).unwrap();
    a.empty_cache().unwrap();
    expect(&a, &[("reserved_bytes", 44_040_192), ("num_device_free", 0)]);
    a.free(thirty).unwrap();
    a.empty_cache().unwrap();
    expect(&a, &[("allocated_bytes", 3072), ("reserved_bytes", 2_097_152), ("num_device_free", 1)]);
    a.free(small).unwrap();
    a.empty_cache().unwrap();
    expect(&a, &[("reserved_bytes", 0), ("num_device_free", 2), ("inactive_split", 0)]);
    assert_eq!(a.raw().reserved_ranges(), 0);
}

#[test]
fn sufficient_holes_in_expandable_segments_are_filled() {
    let mut a = over(GIB, "expandable_segments:True");
    let [_, b, _] = [40 * MIB; 3].map(|bytes| take(&mut a, bytes));
    expect(&a, &[("reserved_bytes", 125_829_120), ("num_device_alloc", 3)]);
    a.free(b).unwrap();
    a.empty_cache().unwrap();
    expect(&a, &[("reserved_bytes", 83_886_080)]);
    take(&mut a, 50 * MIB);
    expect(&a, &[("reserved_bytes", 146_800_640)]);
    take(&mut a, 30 * MIB);
    expect(&a, &[("reserved_bytes", 188_743_680)]);
}

#[test]
fn expandable_blocks_are_left_alone_while_the_setting_is_off() {
    let mut a = over(GIB, "expandable_segments:True");
    let block = take(&mut a, 4 * MIB);
    a.free(block).unwrap();
    a.configure("expandable_segments:False").unwrap();
    take(&mut a, 4 * MIB);
    expect(&a, &[("reserved_bytes", 41_943_040), ("segment", 1), ("num_device_alloc", 2)]);
}

#[test]
fn private_pools_keep_their_memory_until_released_and_flushed() {
    let mut a = over(GIB, "");
    let pool = PoolId(0, 1);
    a.create_pool(pool).unwrap();
    a.begin_pool(pool, StreamFilter::All).unwrap();
    let inside = take(&mut a, 3 * MIB);
    assert!(a.begin_pool(pool, StreamFilter::All).is_err());
    a.end_pool(pool).unwrap();
    a.release_pool_user(pool).unwrap();
    expect_bytes(&a, 3_145_728, 20_971_520, 17_825_792);
    take(&mut a, 3 * MIB);
    expect_bytes(&a, 6_291_456, 41_943_040, 35_651_584);
    a.free(inside).unwrap();
    a.empty_cache().unwrap();
    expect_bytes(&a, 3_145_728, 41_943_040, 17_825_792);
    expect(&a, &[("num_sync_all_streams", 1)]);
    a.release_pool_user(pool).unwrap();
    a.flush_pool(pool).unwrap();
    expect_bytes(&a, 3_145_728, 20_971_520, 17_825_792);
    expect(&a, &[("num_sync_all_streams", 2)]);
    assert!(a.release_pool_user(pool).is_err());
}

#[test]
fn a_pool_without_splits_hands_out_segments() {
    let mut a = over(GIB, "");
    a.set_no_split(PoolId(0, 2));
    a.begin_pool(PoolId(0, 2), StreamFilter::All).unwrap();
    take(&mut a, 100);
    expect_bytes(&a, 2_097_152, 2_097_152, 0);
    expect(&a, &[("requested_bytes", 100)]);
    take(&mut a, 3_000_000);
    expect(&a, &[("allocated_bytes.large_pool.current", 20_971_520)]);
}

#[test]
fn private_pools_may_serve_default_requests_when_memory_is_out() {
    let mut a = over(40 * MIB, "");
    let pool = PoolId(0, 3);
    a.create_pool(pool).unwrap();
    a.begin_pool(pool, StreamFilter::Only(vec![Stream(0)])).unwrap();
    let inside = a.allocate(20 * MIB, Stream(0), Tag::default()).unwrap();
    a.end_pool(pool).unwrap();
    a.free(inside.block).unwrap();
    take(&mut a, 20 * MIB);
    let error = a.allocate(4 * MIB, Stream(0), Tag::default()).unwrap_err();
    let AllocationError::OutOfMemory(figures) = error else { panic!("{error}") };
    assert_eq!((figures.private_idle, figures.unallocated()), (20 * MIB, 0));
    assert!(figures.pytorch_message().contains("with 20.00 MiB allocated in private pools"));
    a.set_use_on_oom(pool, true);
    assert_eq!(a.allocate(4 * MIB, Stream(0), Tag::default()).unwrap().address, inside.address);
}

#[test]
fn pools_used_on_oom_are_asked_in_the_order_of_their_hashes() {
    let mut a = over(80 * MIB, "");
    let places = [1, 2, 4, 7].map(|number| {
        let pool = PoolId(0, number);
        a.set_use_on_oom(pool, true);
        a.begin_pool(pool, StreamFilter::All).unwrap();
        let inside = a.allocate(20 * MIB, Stream(0), Tag::default()).unwrap();
        a.end_pool(pool).unwrap();
        a.free(inside.block).unwrap();
        inside.address
    });
    let asked = [1, 3, 2, 0].map(|index| places[index]);
    let got = asked.map(|_| a.allocate(20 * MIB, Stream(0), Tag::default()).unwrap().address);
    assert_eq!(got, asked);
}

#[test]
fn frees_with_uses_on_other_streams_wait_for_the_pool_to_close() {
    let mut a = over(GIB, "");
    a.begin_pool(PoolId(0, 1), StreamFilter::All).unwrap();
    let block = take(&mut a, 4 * MIB);
    a.record_stream(block, Stream(1)).unwrap();
    a.free(block).unwrap();
    a.empty_cache().unwrap();
    expect(&a, &[("active_bytes", 4_194_304), ("num_sync_all_streams", 0)]);
    a.end_pool(PoolId(0, 1)).unwrap();
    take(&mut a, KIB);
    // Closing the pool settled the use by the one stream that was recorded while it was open.
    expect(&a, &[("active_bytes", 1024)]);
}

#[test]
fn a_limit_flushes_and_then_refuses() {
    let mut a = over(GIB, "");
    a.set_memory_fraction(0.25);
    let block = take(&mut a, 200 * MIB);
    a.free(block).unwrap();
    take(&mut a, 250 * MIB);
    expect(&a, &[("num_alloc_retries", 1), ("num_sync_all_streams", 1), ("num_ooms", 0)]);
    let error = a.allocate(100 * MIB, Stream(0), Tag::default()).unwrap_err();
    assert!(
        matches!(&error, AllocationError::OutOfMemory(f) if f.free == 774 * MIB && f.limit == Some(256 * MIB))
    );
    expect(&a, &[("num_alloc_retries", 2), ("num_ooms", 1)]);
}

#[test]
fn garbage_collection_releases_the_oldest_segments() {
    let mut a = over(GIB, "garbage_collection_threshold:0.5");
    a.set_memory_fraction(0.99);
    let blocks = [100 * MIB, 200 * MIB, 300 * MIB].map(|bytes| take(&mut a, bytes));
    blocks.into_iter().for_each(|b| a.free(b).unwrap());
    take(&mut a, 400 * MIB);
    expect(&a, &[("num_device_free", 3), ("num_sync_all_streams", 0), ("reserved_bytes", 400 * MIB as i64)]);
}

#[test]
fn out_of_memory_errors_have_every_figure() {
    let mut a = over(80 * GIB, "");
    a.set_memory_fraction(0.25);
    take(&mut a, 3 * MIB);
    let module = a.intern("blocks.7.mlp");
    let tag = Tag { category: Category::Activation, module, operator: "linear", step: 12 };
    let error = a.allocate(21 * GIB, Stream(0), tag).unwrap_err();
    let AllocationError::OutOfMemory(figures) = &error else { panic!("{error}") };
    assert_eq!(
        figures.pytorch_message(),
        "CUDA out of memory. Tried to allocate 21.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 79.98 GiB \
         is free. 20.00 GiB allowed; Of the allocated memory 3.00 MiB is allocated by PyTorch, and 17.00 MiB is \
         reserved by PyTorch but unallocated."
    );
    let text = error.to_string();
    for figure in ["21.00 GiB", "80.00 GiB", "79.98 GiB", "20.00 GiB", "3.00 MiB", "17.00 MiB"] {
        assert!(text.contains(figure), "{figure} is not in: {text}");
    }
    for who in ["activation", "linear", "blocks.7.mlp", "step 12", "device 0"] {
        assert!(text.contains(who), "{who} is not in: {text}");
    }
    assert_eq!(figures.requested, 21 * GIB);
}

#[test]
fn empty_and_impossible_requests_are_not_counted() {
    let mut a = over(GIB, "");
    let nothing = a.allocate(0, Stream(0), Tag::default()).unwrap();
    assert_eq!((nothing.address, nothing.size), (0, 0));
    a.free(nothing.block).unwrap();
    let too_much = a.allocate(1 << 60, Stream(0), Tag::default());
    assert!(matches!(too_much, Err(AllocationError::RequestTooLarge { .. })));
    assert!(a.statistics().iter().all(|(key, value)| value == 0 || key == "max_split_size"));
}

#[test]
fn freeing_a_block_twice_is_refused() {
    let mut a = over(GIB, "");
    let first = take(&mut a, KIB);
    a.free(first).unwrap();
    let second = take(&mut a, KIB);
    assert!(matches!(a.free(first), Err(AllocationError::InvalidBlock { .. })));
    assert!(matches!(a.record_stream(first, Stream(1)), Err(AllocationError::InvalidBlock { .. })));
    a.free(second).unwrap();
}

#[test]
fn idle_blocks_remember_the_requested_bytes() {
    let mut a = over(GIB, "");
    let [first, second, _] = [1000, 2000, 3000].map(|bytes| take(&mut a, bytes));
    a.free(first).unwrap();
    a.free(second).unwrap();
    let snapshot = a.snapshot();
    let blocks: Vec<_> = snapshot.segments[0].blocks.iter().map(|b| (b.size, b.requested, b.state)).collect();
    assert_eq!(
        blocks,
        [
            (3072, 2000, BlockState::Inactive),
            (3072, 3000, BlockState::ActiveAllocated),
            (2_091_008, 0, BlockState::Inactive),
        ]
    );
}

#[test]
fn history_is_a_ring_with_the_requests_tags() {
    let mut a = over(GIB, "");
    a.record_history(4);
    let module = a.intern("blocks.0");
    let block = a.allocate(100, Stream(0), Tag { module, step: 3, ..Tag::default() }).unwrap().block;
    a.free(block).unwrap();
    let names =
        |a: &mut Allocator<Counting>| a.snapshot().events.iter().map(|e| e.action.name()).collect::<Vec<_>>();
    assert_eq!(names(&mut a), ["segment_alloc", "alloc", "free_requested", "free_completed"]);
    assert_eq!(names(&mut a), ["alloc", "free_requested", "free_completed", "snapshot"]);
    let snapshot = a.snapshot();
    assert_eq!(snapshot.labels.name(snapshot.events[0].tag.module), "blocks.0");
    // The block's size beside the requested bytes, and a mark between two events.
    a.record_history(4);
    a.mark("forward", 7);
    a.allocate(100, Stream(0), Tag::default()).unwrap();
    let events = a.snapshot().events;
    let seen: Vec<_> = events.iter().map(|e| (e.action.name(), e.tag.operator, e.size, e.block)).collect();
    assert_eq!(seen, [("mark", "forward", 0, 0), ("alloc", "", 100, 512)]);
    assert_eq!(events[0].address, 7);
    a.record_history(0);
    a.mark("backward", 8);
    assert!(a.snapshot().events.is_empty());
}
