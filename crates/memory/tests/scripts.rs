//! Scripts: allocations and frees that are repeated without the work that made them.

use memory::drivers::Counting;
use memory::{AllocationError, Allocator, Event, ScriptEnd, Settings, Stream, Tag};

const TAG: Tag = Tag { step: 1, ..EMPTY };
const EMPTY: Tag =
    Tag { category: memory::Category::Activation, module: memory::Label(0), operator: "work", step: 0 };

fn allocator(settings: &str) -> Allocator<Counting> {
    let mut allocator = Allocator::new(Counting::new(1 << 30), Settings::parse(settings).unwrap()).unwrap();
    allocator.record_history(1 << 12);
    allocator.allocate(3 << 20, Stream::default(), TAG).unwrap();
    allocator
}

/// Allocates blocks of several pools and frees all of them in another order.
fn work(allocator: &mut Allocator<Counting>, step: u32) {
    let tag = Tag { step, ..TAG };
    let mut blocks = Vec::new();
    for (index, bytes) in [700, 5 << 20, 40, 2 << 20, 9 << 20, 700, 1 << 20].into_iter().enumerate() {
        allocator.mark("work", index as u64);
        blocks.push(allocator.allocate(bytes, Stream::default(), tag).unwrap().block);
        if index % 3 == 2 {
            allocator.free(blocks.swap_remove(index / 2)).unwrap();
        }
    }
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
}

/// Returns the events without their times.
fn events(allocator: &mut Allocator<Counting>) -> Vec<Event> {
    allocator.events().iter().map(|event| Event { time_us: 0, ..*event }).collect()
}

#[test]
fn repeated_work_has_the_counters_and_events_of_the_work() {
    for settings in ["", "expandable_segments:True", "max_split_size_mb:24"] {
        let [mut working, mut repeating] = [allocator(settings), allocator(settings)];
        [&mut working, &mut repeating].into_iter().for_each(|allocator| work(allocator, 1));
        repeating.begin_script();
        [&mut working, &mut repeating].into_iter().for_each(|allocator| work(allocator, 2));
        let ScriptEnd::Whole(mut script) = repeating.end_script() else { panic!("{settings}") };
        for step in 3..6 {
            work(&mut working, step);
            assert!(script.fits(repeating.digest_of_blocks()));
            repeating.repeat(&mut script, Some(5), step).unwrap();
            assert!(!script.fits(repeating.digest_of_blocks()));
            repeating.repeat(&mut script, Some(5), step).unwrap();
            repeating.repeat(&mut script, None, step).unwrap();
            assert_eq!(repeating.statistics(), working.statistics(), "{settings}");
            assert!(events(&mut repeating) == events(&mut working), "{settings}");
            assert_eq!(repeating.audit(), Ok(()));
        }
    }
}

#[test]
fn work_that_grows_or_keeps_memory_is_not_repeated() {
    let mut allocator = allocator("");
    assert!(matches!(allocator.end_script(), ScriptEnd::Unclosed));
    allocator.begin_script();
    work(&mut allocator, 1);
    assert!(matches!(allocator.end_script(), ScriptEnd::Grown));
    allocator.begin_script();
    let kept = allocator.allocate(100, Stream::default(), TAG).unwrap();
    assert!(matches!(allocator.end_script(), ScriptEnd::Unclosed));
    allocator.begin_script();
    allocator.free(kept.block).unwrap();
    assert!(matches!(allocator.end_script(), ScriptEnd::Unclosed));
}

#[test]
fn a_repetition_with_other_addresses_is_an_error() {
    let mut allocator = allocator("");
    work(&mut allocator, 1);
    allocator.begin_script();
    work(&mut allocator, 2);
    let ScriptEnd::Whole(mut script) = allocator.end_script() else { panic!() };
    let kept = allocator.allocate(700, Stream::default(), TAG).unwrap();
    assert!(!script.fits(allocator.digest_of_blocks()));
    let moved = allocator.repeat(&mut script, None, 3);
    assert!(
        matches!(moved, Err(AllocationError::Moved { recorded, .. }) if recorded == kept.address),
        "{moved:?}"
    );
}
