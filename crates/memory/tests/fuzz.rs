//! Fuzzing of the readers: arbitrary bytes give an error or a value, never a panic.
//!
//! The targets are plain functions of a byte slice. A seeded mutator over real inputs drives them for a
//! bounded time; `PLIMSOLL_LONG_TESTS` sets the seconds.

use std::time::{Duration, Instant};

use memory::Settings;
use memory::replay::{parse, replay_bytes};

/// Parses UTF-8 input. A text that is accepted must be accepted again.
fn fuzz_settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(settings) = Settings::parse(text) {
        assert_eq!(Settings::parse(settings.text()), Ok(settings.clone()));
        assert!(settings.large_segment_size > 10 << 20);
        assert!(settings.max_split_size >= settings.large_segment_size);
        assert!(settings.max_non_split_rounding >= settings.large_segment_size);
        assert!((0.0..1.0).contains(&settings.garbage_collection_threshold));
        let divisions = settings.roundup_power2_divisions;
        assert!(divisions.iter().all(|d| *d == 0 || d.is_power_of_two()));
    }
}

/// Parses the input as a recording, and replays it if that succeeds.
fn fuzz_recording(data: &[u8]) {
    let read = parse(data);
    let replayed = replay_bytes(data);
    assert_eq!(read.is_ok(), replayed.is_ok());
    if let (Ok(read), Ok(report)) = (read, replayed) {
        assert!(report.operations <= read.iter().map(|r| r.steps.len()).sum());
        assert_eq!(report.mismatches > 0, report.first.is_some());
    }
}

/// SplitMix64, a reproducible random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

const PIECES: [&[u8]; 20] = [
    b"18446744073709551615",
    b"9223372036854775807",
    b"-1",
    b"0",
    b"1e400",
    b"null",
    b"[]",
    b"{}",
    b"\"",
    b",",
    b":",
    b"[",
    b"]",
    b">",
    b"\xff",
    b"\n",
    b"\"oom\"",
    b"\"free\"",
    b"1152921504606846975",
    b"expandable_segments:True",
];

/// Mutates a few positions: flips bits; inserts, removes or repeats pieces; makes numbers extreme.
fn mutate(data: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(data.len() + 1);
        match random.below(6) {
            0 if at < data.len() => data[at] ^= 1 << random.below(8),
            1 => drop(data.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
            2 => drop(data.drain(at..(at + random.below(40)).min(data.len()))),
            3 => {
                let piece = data[at..(at + random.below(60)).min(data.len())].to_vec();
                let to = random.below(data.len() + 1);
                drop(data.splice(to..to, piece));
            }
            4 => {
                let from = data[at..].iter().position(u8::is_ascii_digit).map_or(data.len(), |p| at + p);
                let to =
                    data[from..].iter().position(|b| !b.is_ascii_digit()).map_or(data.len(), |p| from + p);
                drop(data.splice(from..to, PIECES[random.below(6)].iter().copied()));
            }
            _ => data.truncate(data.len() - random.below(data.len() / 8 + 1)),
        }
    }
}

fn fuzz(inputs: &[Vec<u8>], target: fn(&[u8])) {
    let seconds = std::env::var("PLIMSOLL_LONG_TESTS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let start = Instant::now();
    let limit = Duration::from_secs_f64(seconds);
    inputs.iter().for_each(|input| target(input));
    let mut random = Random(20_261_120);
    while start.elapsed() < limit {
        let mut data = inputs[random.below(inputs.len())].clone();
        mutate(&mut data, &mut random);
        target(&data);
    }
}

#[test]
fn settings_parser_survives() {
    let inputs = [
        "",
        "max_split_size_mb:64,garbage_collection_threshold:0.6",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:True",
        "roundup_power2_divisions:4, large_segment_size_mb:32 , max_non_split_rounding_mb:64,",
        "backend:native,per_process_memory_fraction:0.5,pinned_num_register_threads:8",
        "release_lock_on_cudamalloc:True,pinned_reserve_segment_size_mb:1",
    ];
    fuzz(&inputs.map(|text| text.as_bytes().to_vec()), fuzz_settings);
}

#[test]
fn recording_reader_survives() {
    let trace = r#"{"case":"t","total_memory":1073741824,"alloc_conf":"expandable_segments:False","limit_bytes":33554432,
        "limit_fraction":0.03125,"stat_names":["allocation.all.current","num_ooms"],"initial":[0,0],"ops":[
        ["alloc",1,3000,0,4194304,[1,0]],["alloc",2,5000000,0,8388608,[2,0]],["record_stream",2,7,[2,0]],
        ["free",2,[1,0]],["oom",3,90000000,0,"CUDA out of memory.",[1,1]],["empty_cache",[1,1]],["reset_peak",[1,1]],
        ["free",1,[0,1]]],"segment_events":[["segment_alloc",4194304,2097152,0],["segment_alloc",8388608,20971520,0],
        ["segment_free",8388608,20971520,0]],"final_segments":[]}"#;
    let vectors = concat!(
        r#"{"name":"v","device_total":1073741824,"ops":[{"op":"conf expandable_segments:True","d":[]},"#,
        r#"{"op":"a p1 3000 1","ptr":52776558133248,"d":[[0,1],[12,1]]},{"op":"r p1 2","d":[]},"#,
        r#"{"op":"pbegin 0 1 -1","d":[]},{"op":"a p2 9000000 0","ptr":1,"d":[]},{"op":"f p2","d":[]},"#,
        r#"{"op":"pend 0 1","d":[]},{"op":"prel 0 1","d":[]},{"op":"emptypool 0 1","d":[]},{"op":"f p1","d":[]},"#,
        r#"{"op":"done 2","d":[]},{"op":"others 5","d":[]},{"op":"frac 0.5","d":[]},{"op":"rpeak","d":[]},"#,
        r#"{"op":"racc","d":[]},{"op":"nosplit 0 1","d":[]},{"op":"empty","d":[]}],"final_segments":[]}"#,
    );
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, vectors.as_bytes()).unwrap();
    let inputs = [trace.as_bytes().to_vec(), vectors.as_bytes().to_vec(), packed.finish().unwrap()];
    fuzz(&inputs, fuzz_recording);
}
