//! Splitting, merging and choosing blocks, and blocks used on several streams.

use memory::{BlockState, Category, Stream, Tag};

use super::{GIB, KIB, MIB, expect, expect_bytes, over, take, take_on};

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
    let block = a.allocate(10 * MIB, Stream(0), Tag::with_category(Category::Activation)).unwrap().block;
    a.free(block).unwrap();
    a.allocate(2 * MIB, Stream(0), Tag::with_category(Category::Parameter)).unwrap();
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
