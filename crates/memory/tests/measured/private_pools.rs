//! Private pools.

use memory::{AllocationError, PoolId, Stream, StreamFilter, Tag};

use super::{GIB, KIB, MIB, expect, expect_bytes, over, take};

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
    let positions = [1, 2, 4, 7].map(|number| {
        let pool = PoolId(0, number);
        a.set_use_on_oom(pool, true);
        a.begin_pool(pool, StreamFilter::All).unwrap();
        let inside = a.allocate(20 * MIB, Stream(0), Tag::default()).unwrap();
        a.end_pool(pool).unwrap();
        a.free(inside.block).unwrap();
        inside.address
    });
    let asked = [1, 3, 2, 0].map(|index| positions[index]);
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
