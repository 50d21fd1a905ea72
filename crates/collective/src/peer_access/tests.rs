#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use device::{Category, Device, DeviceOptions, Request};
use proptest::prelude::*;

use super::*;

/// Memory of ranks that are threads: each 16-byte vector of a shared region is one f32. The test fails if two
/// ranks access a value at the same time.
struct Memory {
    /// Values by rank, region and vector.
    values: Vec<Vec<Vec<Mutex<f32>>>>,
    /// Signals by waiting rank and arrived rank.
    signals: Vec<Vec<AtomicU32>>,
}

impl Memory {
    fn new(ranks: usize, regions: &[usize], first_meeting: u32) -> Self {
        let region = |vectors: &usize| (0..*vectors).map(|_| Mutex::new(f32::NAN)).collect();
        let signals = || (0..ranks).map(|_| AtomicU32::new(first_meeting)).collect();
        Memory {
            values: (0..ranks).map(|_| regions.iter().map(region).collect()).collect(),
            signals: (0..ranks).map(|_| signals()).collect(),
        }
    }

    /// Fills a region of this rank.
    fn fill(&self, rank: usize, region: usize, value_at: impl Fn(usize) -> f32) {
        for (index, value) in self.values[rank][region].iter().enumerate() {
            *value.try_lock().expect("no other rank uses the value") = value_at(index);
        }
    }

    fn read(&self, rank: usize, region: usize) -> Vec<f32> {
        self.values[rank][region]
            .iter()
            .map(|value| *value.try_lock().expect("no other rank uses the value"))
            .collect()
    }
}

struct Host<'a> {
    memory: &'a Memory,
    rank: usize,
    /// State of the random delays of this rank's operations.
    pace: u64,
}

impl Host<'_> {
    fn dawdle(&mut self) {
        self.pace = self.pace.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(self.pace >> 33 & 127));
    }

    fn vectors(range: SharedRange) -> std::ops::Range<usize> {
        range.offset / VECTOR..(range.offset + range.bytes) / VECTOR
    }
}

impl PeerEngine for Host<'_> {
    fn meet(&mut self, number: u32, _stream: StreamKind) -> Result<()> {
        self.dawdle();
        for row in &self.memory.signals {
            row[self.rank].store(number, Ordering::SeqCst);
        }
        let late = |word: &AtomicU32| (word.load(Ordering::SeqCst).wrapping_sub(number) as i32) < 0;
        while self.memory.signals[self.rank].iter().any(late) {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn add(&mut self, sum: &PeerSum<'_>, everywhere: bool, _stream: StreamKind) -> Result<()> {
        for vector in Self::vectors(sum.own) {
            let value = |(rank, range): &(usize, SharedRange)| {
                self.memory.values[*rank][range.region][vector].try_lock().expect("one rank sums a vector")
            };
            let mut held: Vec<_> = sum.parts.iter().map(value).collect();
            let mut values: Vec<f32> = held.iter().map(|value| **value).collect();
            for (left, right) in sum.tree.additions() {
                values[left] += values[right];
            }
            for ((rank, range), value) in sum.parts.iter().zip(&mut held) {
                if *range == sum.own && (everywhere || *rank == self.rank) {
                    **value = values[0];
                }
            }
        }
        self.dawdle();
        Ok(())
    }

    fn fetch_and_add(&mut self, sum: &PeerSum<'_>, _scratch: Region<'_>, stream: StreamKind) -> Result<()> {
        // Locks one part at a time, as copies arrive; the values do not change meanwhile.
        for (rank, range) in &sum.parts {
            for vector in Self::vectors(*range) {
                let value = &self.memory.values[*rank][range.region][vector];
                drop(value.try_lock().expect("one rank reads a vector"));
            }
            std::thread::yield_now();
        }
        self.add(sum, false, stream)
    }

    fn put(&mut self, range: SharedRange, peer: usize, _stream: StreamKind) -> Result<()> {
        for vector in Self::vectors(range) {
            let own = *self.memory.values[self.rank][range.region][vector]
                .try_lock()
                .expect("a rank owns its vector");
            *self.memory.values[peer][range.region][vector].try_lock().expect("one rank writes a vector") =
                own;
        }
        Ok(())
    }
}

fn value(rank: usize, round: usize, index: usize) -> f32 {
    ((rank * 7919 + round * 104_729 + index * 31) % 10_007) as f32 / 97.0 - 50.0
}

/// Returns the sum of all parts by definition of the tree.
fn sum_of_all(tree: &SumTree, value_at: impl Fn(usize) -> f32) -> f32 {
    let mut values: Vec<f32> = (0..tree.parts()).map(value_at).collect();
    tree.additions().for_each(|(left, right)| values[left] += values[right]);
    values[0]
}

/// Number of regions on every rank.
const COMMON: usize = 2;
const LAYOUT: SharedLayout = SharedLayout { common: COMMON, summed: COMMON };

const STREAM: StreamKind = StreamKind::Reduce;

/// Runs rounds of all calls. Before and after each round, a rank fills and reads its memory without
/// synchronising.
fn rounds(
    memory: &Memory,
    rank: usize,
    tree: &RankTree,
    method: PeerMethod,
    shard: usize,
    seed: u64,
    first: u32,
) {
    let ranks = tree.ranks();
    let own_parts = tree.parts_of(rank);
    let engine = Host { memory, rank, pace: seed.wrapping_add(rank as u64) };
    let window = PeerWindow::new(engine, (rank, ranks), method, LAYOUT);
    let mut window = PeerWindow { meetings: first, ..window };
    let whole = |region: usize| SharedRange { region, offset: 0, bytes: VECTOR * shard * ranks };
    // The simulated ranks have their own memory, so the buffer is empty.
    let device = Device::cpu(rank, &DeviceOptions::default()).unwrap();
    let buffer = device.allocate(0, Request::new(Category::Communication, "test")).unwrap();
    let nothing = buffer.region(0, 0);
    for round in 0..4 {
        for everywhere in [true, false] {
            // A round sums one or two regions between two meetings; the second sum goes to every rank.
            let regions = 1 + round % 2;
            let sum = |region: usize| {
                let everywhere = everywhere || region == 1;
                let scratch = nothing;
                let dtype = DType::F32;
                let sum = SharedSum { region: nothing, scratch, dtype, everywhere };
                (whole(region), sum)
            };
            for (region, (number, part)) in
                (0..regions).flat_map(|region| own_parts.clone().enumerate().map(move |own| (region, own)))
            {
                let at = region + COMMON * number;
                memory.fill(rank, at, |index| value(part, round + region, index));
            }
            let sums: Vec<_> = (0..regions).map(sum).collect();
            window.sum(&sums, tree, round == 3, STREAM).unwrap();
            for (region, (_, sum)) in sums.iter().enumerate() {
                for (index, actual) in memory.read(rank, region).into_iter().enumerate() {
                    if sum.everywhere || index / shard == rank {
                        let expected = sum_of_all(tree.tree(), |part| value(part, round + region, index));
                        assert_eq!(actual, expected, "region {region}, {index}");
                    }
                }
            }
        }
        let own = SharedRange { offset: VECTOR * shard * rank, bytes: VECTOR * shard, ..whole(1) };
        memory.fill(rank, 1, |index| value(rank, round, index));
        let parts: Vec<_> = (0..ranks).filter(|to| *to != rank).map(|to| (to, own)).collect();
        window.exchange(&parts, STREAM).unwrap();
        for (index, actual) in memory.read(rank, 1).into_iter().enumerate() {
            assert_eq!(actual, value(index / shard, round, index), "{index}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn ranks_never_share_a_value_and_sums_follow_the_tree(
        ranks in 2_usize..9,
        leaves_per_rank in 1_usize..4,
        more_leaves in 0_usize..3,
        method in prop::sample::select(vec![PeerMethod::Kernel, PeerMethod::Copies, PeerMethod::Engines]),
        shard in 1_usize..5,
        seed in any::<u64>(),
        // The number of meetings wraps around.
        first in prop::sample::select(vec![0_u32, u32::MAX - 5, u32::MAX / 2 - 5]),
    ) {
        let leaves = leaves_per_rank * ranks + more_leaves.min(ranks - 1);
        let bound = |rank: usize| rank * leaves_per_rank + rank.min(leaves - leaves_per_rank * ranks);
        let runs = (0..ranks).map(|rank| bound(rank)..bound(rank + 1));
        let tree = RankTree::of_runs(leaves, runs).unwrap();
        let most = (0..ranks).map(|rank| tree.parts_of(rank).len()).max().unwrap_or(1);
        let memory = Memory::new(ranks, &vec![shard * ranks; COMMON * most], first);
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let memory = &memory;
                let tree = &tree;
                scope.spawn(move || rounds(memory, rank, tree, method, shard, seed, first));
            }
        });
    }
}

#[test]
fn ranges_divide_only_into_whole_vectors_per_rank() {
    let memory = Memory::new(4, &[], 0);
    let host = Host { memory: &memory, rank: 0, pace: 0 };
    let window = PeerWindow::new(host, (0, 4), PeerMethod::Kernel, SharedLayout { common: 2, summed: 1 });
    let tree = RankTree::balanced(4);
    let several = RankTree::of_runs(5, [0..2, 2..3, 3..4, 4..5]).unwrap();
    assert!(several.has_one_part_each() && !several.tree().is_balanced());
    for (offset, bytes, divides) in
        [(0, 64, true), (16, 128, true), (8, 64, false), (0, 72, false), (0, 48, false), (0, 0, true)]
    {
        let range = SharedRange { region: 0, offset, bytes };
        assert_eq!(window.divides(range, &tree), divides, "{offset} {bytes}");
        assert_eq!(window.divides(range, &several), divides, "{offset} {bytes}");
    }
    // Only summed regions have further parts.
    let further = RankTree::of_runs(8, [0..3, 3..5, 5..7, 7..8]).unwrap();
    assert!(!further.has_one_part_each());
    for (region, divides) in [(0, true), (1, false)] {
        assert_eq!(window.divides(SharedRange { region, offset: 0, bytes: 64 }, &further), divides);
    }
}

#[test]
fn ranks_with_more_parts_share_more_regions() {
    let layout = SharedLayout { common: 3, summed: 2 };
    assert_eq!([layout.part(1, 0), layout.part(1, 1), layout.part(0, 2)], [Some(1), Some(4), Some(5)]);
    assert_eq!(layout.part(2, 1), None);
    for (lengths, others, agrees) in [
        (&[8, 4, 2][..], &[8, 4, 2][..], true),
        (&[8, 4, 2, 8, 4], &[8, 4, 2], true),
        (&[8, 4, 2, 8, 2], &[8, 4, 2], false),
        (&[8, 4], &[8, 4], false),
        (&[8, 4, 2], &[8, 4, 1], false),
    ] {
        assert_eq!(layout.agrees(lengths, others), agrees, "{lengths:?} {others:?}");
    }
    assert!(!SharedLayout::default().agrees(&[8], &[8, 8]));
}
