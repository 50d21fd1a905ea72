//! Limits, refusals, and the history of events.

use memory::drivers::Counting;
use memory::{AllocationError, Allocator, BlockState, Category, Stream, Tag};

use super::{GIB, KIB, MIB, expect, over, take};

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

/// The error message advises expandable segments only if they are off.
#[test]
fn expandable_segments_are_advised_where_they_are_off() {
    for (settings, advised) in [("", true), ("expandable_segments:True", false)] {
        let mut a = over(GIB, settings);
        // Every sixth block stays, so that each segment or page has one.
        let blocks: Vec<_> = (0..48 * 6).map(|_| take(&mut a, 3 * MIB)).collect();
        let idle = blocks.into_iter().enumerate().filter(|(index, _)| index % 6 > 0);
        idle.for_each(|(_, block)| a.free(block).unwrap());
        let error = a.allocate(400 * MIB, Stream(0), Tag::default()).unwrap_err();
        let text = error.to_string();
        assert_eq!(text.contains("`expandable_segments:True`"), advised, "{settings}: {text}");
        assert!(text.contains("Enough is idle, but"), "{settings}: {text}");
    }
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
