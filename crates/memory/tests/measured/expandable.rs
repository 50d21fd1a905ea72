//! Expandable segments.

use super::{GIB, MIB, expect, over, take};

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
