//! Invariants that hold after every operation, for any sequence, settings and driver failures.

use crate::support::{World, operation, settings};
use memory::AllocationError;
use proptest::prelude::*;

const TOTAL: u64 = 1 << 30;

/// Returns a configuration with few cases, because each audit visits every block; `PROPTEST_CASES` sets more.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48);
    ProptestConfig { cases, ..ProptestConfig::default() }
}

/// Frees everything and checks that all memory was returned and all counters are 0.
fn expect_nothing_left(world: &mut World) -> Result<(), TestCaseError> {
    world.drop_everything();
    prop_assert_eq!(world.allocator.audit(), Ok(()));
    for (key, value) in world.allocator.statistics().iter() {
        let oversize = key.starts_with("oversize"); // unbalanced where its threshold was moved
        if key.ends_with(".current") && !oversize {
            prop_assert_eq!(value, 0, "{}", key);
        }
    }
    prop_assert_eq!(world.allocator.raw().device().used(), 0);
    prop_assert_eq!(world.allocator.category_bytes().total(), 0);
    prop_assert!(world.allocator.snapshot().segments.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn counters_match_blocks(
        start in settings(),
        operations in prop::collection::vec(operation(false), 1..250),
    ) {
        let mut world = World::new(&start, TOTAL);
        for operation in &operations {
            let result = world.apply(operation);
            prop_assert!(!matches!(result, Err(AllocationError::Driver { .. })), "{:?}: {:?}", operation, result);
            prop_assert_eq!(world.allocator.audit(), Ok(()), "after {:?}", operation);
            prop_assert_eq!(world.allocator.statistics().reserved(), world.allocator.raw().device().used());
        }
        expect_nothing_left(&mut world)?;
    }

    #[test]
    fn counters_match_blocks_after_driver_failures(
        start in settings(),
        operations in prop::collection::vec(operation(true), 1..250),
    ) {
        let mut world = World::new(&start, TOTAL);
        for operation in &operations {
            let before = world.allocator.statistics().allocated();
            let failed = world.apply(operation).is_err();
            prop_assert_eq!(world.allocator.audit(), Ok(()), "after {:?}", operation);
            prop_assert_eq!(world.allocator.statistics().reserved(), world.allocator.raw().device().used());
            if failed {
                prop_assert_eq!(world.allocator.statistics().allocated(), before, "after {:?}", operation);
            }
        }
        expect_nothing_left(&mut world)?;
    }

    #[test]
    fn dropping_an_allocator_returns_all_memory(
        start in settings(),
        operations in prop::collection::vec(operation(false), 1..100),
    ) {
        let mut world = World::new(&start, TOTAL);
        for operation in &operations {
            let _ = world.apply(operation);
        }
        let device = world.device();
        drop(world);
        prop_assert_eq!(device.borrow().used(), 0);
        prop_assert_eq!(device.borrow().reserved_ranges(), 0);
    }

    #[test]
    fn blocks_in_use_do_not_overlap(
        start in settings(),
        operations in prop::collection::vec(operation(true), 1..150),
    ) {
        let mut world = World::new(&start, TOTAL);
        for operation in &operations {
            let _ = world.apply(operation);
            let ranges = world.alive.iter().map(|a| (a.address, a.address + a.size));
            let mut used: Vec<(u64, u64)> = ranges.collect();
            used.sort_unstable();
            prop_assert!(used.windows(2).all(|pair| pair[0].1 <= pair[1].0), "after {:?}", operation);
        }
    }
}
