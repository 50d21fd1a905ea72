//! Settings have PyTorch's syntax.

use memory::{Allocator, Settings, Stream, Tag, drivers::Counting};

const MIB: u64 = 1 << 20;

#[test]
fn every_key_is_read() {
    let text = " large_segment_size_mb:32, max_split_size_mb:64,max_non_split_rounding_mb:48,\
                garbage_collection_threshold:0.6,expandable_segments:True,per_process_memory_fraction:0.25,";
    let settings = Settings::parse(text).unwrap();
    assert_eq!(settings.large_segment_size, 32 * MIB);
    assert_eq!(settings.max_split_size, 64 * MIB);
    assert_eq!(settings.max_non_split_rounding, 48 * MIB);
    assert_eq!(settings.garbage_collection_threshold, 0.6);
    assert!(settings.expandable_segments);
    assert_eq!(settings.per_process_memory_fraction, 0.25);
    assert_eq!(settings.text(), text);
    assert!(settings.warnings().is_empty());
}

#[test]
fn divisions_fill_their_slots() {
    let read = |text: &str| Settings::parse(&format!("roundup_power2_divisions:{text}")).unwrap();
    assert_eq!(read("4").roundup_power2_divisions, [4; 16]);
    assert_eq!(read("1").roundup_power2_divisions, [1; 16]);
    let list = read("[ 256:1 ,512:2, 1024:4, >:8 ]").roundup_power2_divisions;
    assert_eq!(list, [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]);
    assert_eq!(read("[>:4]").roundup_power2_divisions, [0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]);
    assert_eq!(read("[]").roundup_power2_divisions, [0; 16]);
    let twice = read("[16:2,>:8],roundup_power2_divisions:[4:1,8:4]").roundup_power2_divisions;
    assert_eq!(twice, [1, 1, 1, 4, 2, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]);
    assert_eq!(read("[4:2,16:0]").roundup_power2_divisions, [2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn invalid_settings_are_refused_with_their_key() {
    for (text, key, allowed) in [
        ("max_split_size_mb:19", "max_split_size_mb", "at least large_segment_size_mb"),
        (
            "large_segment_size_mb:32,max_split_size_mb:31",
            "max_split_size_mb",
            "at least large_segment_size_mb",
        ),
        (
            "max_split_size_mb:31,large_segment_size_mb:32",
            "max_split_size_mb",
            "at least large_segment_size_mb",
        ),
        ("max_non_split_rounding_mb:1", "max_non_split_rounding_mb", "at least"),
        ("large_segment_size_mb:10", "large_segment_size_mb", "above 10"),
        ("garbage_collection_threshold:1", "garbage_collection_threshold", "below 1"),
        ("garbage_collection_threshold:0", "garbage_collection_threshold", "above 0"),
        ("garbage_collection_threshold:nan", "garbage_collection_threshold", "above 0"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions", "power of two"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions", "power of two"),
        ("roundup_power2_divisions:[3:1]", "roundup_power2_divisions", "power of two"),
        ("roundup_power2_divisions:[4:3]", "roundup_power2_divisions", "power of two"),
        ("roundup_power2_divisions:[>:3]", "roundup_power2_divisions", "power of two"),
        ("roundup_power2_divisions:[4:2", "roundup_power2_divisions", "key:value"),
        ("expandable_segments:true", "expandable_segments", "True, False"),
        ("expandable_segments", "expandable_segments", "key:value"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction", "0 to 1"),
        ("backend:cudaMallocAsync", "backend", "native"),
        ("max_split_size:64", "max_split_size", "max_split_size_mb"),
        ("pinned_num_register_threads:3", "pinned_num_register_threads", "128"),
        ("pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb", "above 0"),
        ("max_split_size_mb:99999999999999999999", "max_split_size_mb", "whole MiB"),
    ] {
        let error = Settings::parse(text).unwrap_err();
        assert_eq!(error.key, key, "{text}");
        assert!(error.allowed.contains(allowed), "{text}: {error}");
        assert!(error.to_string().contains(key) && error.to_string().contains(allowed), "{error}");
    }
}

#[test]
fn keys_without_effect_are_reported() {
    let settings =
        Settings::parse("release_lock_on_cudamalloc:True,pinned_num_register_threads:8,backend:native")
            .unwrap();
    let warnings = settings.warnings();
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].contains("release_lock_on_cudamalloc"));
    assert!(warnings[1].contains("pinned_num_register_threads"));
}

#[test]
fn only_the_first_variable_that_is_set_is_read() {
    let from = |present: &'static [(&'static str, &'static str)]| {
        let get = |name: &str| present.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Settings::from_environment(get).unwrap().max_split_size
    };
    assert_eq!(from(&[]), u64::MAX);
    assert_eq!(from(&[("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:30")]), 30 * MIB);
    let both = &[("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:30"), ("PYTORCH_ALLOC_CONF", "")];
    assert_eq!(from(both), u64::MAX);
    let all =
        &[("PYTORCH_ALLOC_CONF", "max_split_size_mb:30"), ("PLIMSOLL_ALLOC_CONF", "max_split_size_mb:40")];
    assert_eq!(from(all), 40 * MIB);
}

#[test]
fn updates_keep_some_settings_and_reset_others() {
    let first =
        Settings::parse("expandable_segments:True,large_segment_size_mb:32,max_split_size_mb:64").unwrap();
    let second = first.updated("garbage_collection_threshold:0.5").unwrap();
    assert!(second.expandable_segments);
    assert_eq!(second.large_segment_size, 32 * MIB);
    assert_eq!(second.max_non_split_rounding, 32 * MIB);
    assert_eq!(second.max_split_size, u64::MAX);
    assert_eq!(second.updated("").unwrap().garbage_collection_threshold, 0.0);
}

#[test]
fn a_memory_fraction_in_the_settings_limits_new_allocators() {
    let settings = Settings::parse("per_process_memory_fraction:0.25").unwrap();
    let mut allocator = Allocator::new(Counting::new(1 << 30), settings).unwrap();
    assert_eq!(allocator.limit_bytes(), Some(256 * MIB));
    allocator.configure("per_process_memory_fraction:0.5").unwrap();
    assert_eq!(allocator.limit_bytes(), Some(256 * MIB));
    assert!(allocator.allocate(300 * MIB, Stream(0), Tag::default()).is_err());
    assert!(allocator.configure("nonsense:1").is_err());
}
