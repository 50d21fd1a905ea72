//! Checks of sums and copies in shared memory, the same on every transport. Transports without peer access
//! must report that and change nothing.

use std::time::Duration;

use collective::{Collective, ProcessGroup, SumKernels};
use collective::{PeerAccess, PeerAccessOptions, PeerMethod, RankTree, SharedLayout, SharedSum};
use device::{Backend, Buffer, Device};
use half::bf16;
use system::skipped::{self, Need};
use tensor::ops::tree;

use super::{Failed, Number, Outcome, STREAM, buffer, filled, sums_exactly, tree_sum, value, values};

/// Vectors in each rank's shard of a sum: few, and without common divisors.
const VECTORS: [usize; 3] = [1, 37, 10_007];
/// Bytes of a range longer than a page.
const LARGE: usize = 24 << 20;

/// Shares regions, and returns whether ranks can access each other's memory. With `PLIMSOLL_NEED_PEERS` set,
/// GPUs must.
fn share(
    group: &ProcessGroup,
    device: &Device,
    buffers: &[&Buffer],
    options: PeerAccessOptions,
) -> Outcome<bool> {
    device.synchronize()?;
    let regions: Vec<_> = buffers.iter().map(|buffer| buffer.region(0, buffer.bytes())).collect();
    match group.share(&regions, options)? {
        PeerAccess::Granted => Ok(true),
        PeerAccess::Denied(why) => {
            let summable = (2..=tree::MOST_PARTS).contains(&group.world_size());
            // Ranks that share a GPU need no peer access.
            if device.backend() == Backend::Cuda && summable && !sums_exactly() {
                if std::env::var_os("PLIMSOLL_NEED_PEERS").is_some() {
                    return Err(Failed::Other(why));
                }
                skipped::report(Need::Other("peer access"), &why);
            }
            Ok(false)
        }
    }
}

fn fill<T: Number>(device: &Device, buffer: &Buffer, value_at: impl Fn(usize) -> f32) -> Outcome<()> {
    let values: Vec<T> =
        (0..buffer.bytes() / size_of::<T>()).map(|index| T::rounded(value_at(index))).collect();
    device.copy_from_host(&values, buffer.region(0, buffer.bytes()))?;
    Ok(device.synchronize()?)
}

/// A range of a buffer, in elements. Each rank owns a shard.
#[derive(Clone, Copy)]
struct ShardedRange {
    first: usize,
    shard: usize,
}

impl ShardedRange {
    /// Returns the rank whose shard contains `index`.
    fn owner(self, index: usize, ranks: usize) -> Option<usize> {
        index.checked_sub(self.first).map(|index| index / self.shard).filter(|owner| *owner < ranks)
    }
}

/// Runs rounds of sums of ranges of a shared buffer. Ranks take turns in being late, and each round begins
/// right after the last.
fn sums<T: Number>(
    group: &ProcessGroup,
    device: &Device,
    options: PeerAccessOptions,
    vectors: usize,
) -> Outcome<()> {
    let rank = group.rank();
    let ranks = group.world_size();
    let shard = vectors * 16 / size_of::<T>();
    let around = 16 / size_of::<T>();
    // Two ranges are summed; the vectors before, between and after them are not.
    let part = ShardedRange { first: around, shard };
    let last = ShardedRange { first: around + shard * ranks + around, shard: 4 * around };
    let count = last.first + last.shard * ranks + around;
    let whole = buffer(device, count * size_of::<T>());
    let direct = share(group, device, &[&whole], options)?;
    let scratch = buffer(device, whole.bytes());
    let tree = RankTree::balanced(ranks);
    let sum = |region, everywhere| {
        let scratch = scratch.region(0, scratch.bytes());
        SharedSum { region, scratch, dtype: T::DTYPE, everywhere }
    };
    let region =
        |part: ShardedRange| whole.region(part.first * size_of::<T>(), part.shard * ranks * size_of::<T>());
    for round in 0..6 {
        let operand = |rank: usize, index: usize| value(rank, index + 1000 * round);
        let everywhere = round % 2 == 0;
        fill::<T>(device, &whole, |index| operand(rank, index))?;
        if round % ranks == rank {
            std::thread::sleep(Duration::from_millis(3));
        }
        // The first range alone, or both together; the second sum goes to every rank.
        let together = round % 3 > 0;
        let sums = [sum(region(part), everywhere), sum(region(last), true)];
        let sums = sums[..1 + usize::from(together)].to_vec();
        let sum = Collective::SumShared { sums, tree: tree.clone(), alone: round > 3 };
        assert_eq!(group.try_run(sum, STREAM)?, direct);
        for (index, actual) in values::<T>(device, &whole, 0, count)?.into_iter().enumerate() {
            let owner = part.owner(index, ranks).is_some_and(|owner| everywhere || owner == rank);
            let summed = owner || together && last.owner(index, ranks).is_some();
            let expected = match summed && direct {
                true => tree_sum(0, ranks, &|rank| T::rounded(operand(rank, index))),
                false => T::rounded(operand(rank, index)),
            };
            assert_eq!(actual, expected, "round {round}, element {index} of {count}, {options:?}");
        }
    }
    // Regions that are not shared, or do not divide evenly, stay unchanged.
    let other = filled::<T>(device, &vec![T::rounded(1.0); 16 * ranks]);
    let odd = [other.region(0, other.bytes()), whole.region(16, 16 * ranks + size_of::<T>() * ranks)];
    for region in odd {
        let with_another = [sum(whole.region(16, 16 * ranks), true), sum(region, true)];
        for sums in [&with_another[1..], &with_another] {
            let sum = Collective::SumShared { sums: sums.to_vec(), tree: tree.clone(), alone: false };
            assert!(!group.try_run(sum, STREAM)?);
        }
    }
    // Nothing is shared any more, so the buffer may be freed.
    share(group, device, &[], options).map(drop)
}

/// Sums of ranks that own uneven runs of a tree's leaves, some of them several parts.
fn sums_of_several_parts<T: Number>(
    group: &ProcessGroup,
    device: &Device,
    options: PeerAccessOptions,
) -> Outcome<()> {
    let rank = group.rank();
    let ranks = group.world_size();
    let leaves = 3 * ranks + 1;
    let runs = (0..ranks).map(|rank| 3 * rank + usize::from(rank > 0)..3 * rank + 4);
    let tree = RankTree::of_runs(leaves, runs).unwrap();
    let count = ranks * 37 * 16 / size_of::<T>();
    let own = tree.parts_of(rank);
    let parts: Vec<_> = own.clone().map(|_| buffer(device, count * size_of::<T>())).collect();
    let layout = SharedLayout { common: 1, summed: 1 };
    let options = PeerAccessOptions { layout, ..options };
    let direct = share(group, device, &parts.iter().collect::<Vec<_>>(), options)?;
    let scratch = buffer(device, tree.scratch_elements(parts[0].bytes()));
    for everywhere in [true, false] {
        for (part, buffer) in own.clone().zip(&parts) {
            fill::<T>(device, buffer, |index| value(part, index))?;
        }
        let region = parts[0].region(0, parts[0].bytes());
        let scratch = scratch.region(0, scratch.bytes());
        let sum = SharedSum { region, scratch, dtype: T::DTYPE, everywhere };
        let sum = Collective::SumShared { sums: vec![sum], tree: tree.clone(), alone: false };
        assert_eq!(group.try_run(sum, STREAM)?, direct);
        for (index, actual) in values::<T>(device, &parts[0], 0, count)?.into_iter().enumerate() {
            if direct && (everywhere || index / (count / ranks) == rank) {
                let mut all: Vec<T> = (0..tree.parts()).map(|part| T::rounded(value(part, index))).collect();
                for (left, right) in tree.tree().additions() {
                    all[left] = all[left].plus(all[right]);
                }
                assert_eq!(actual, all[0], "element {index}, {options:?}");
            }
        }
    }
    share(group, device, &[], PeerAccessOptions { layout: SharedLayout::default(), ..options }).map(drop)
}

fn options() -> [PeerAccessOptions; 4] {
    [(16, PeerMethod::Engines), (16, PeerMethod::Kernel), (3, PeerMethod::Copies), (1, PeerMethod::Kernel)]
        .map(|(blocks, method)| PeerAccessOptions {
            blocks,
            method,
            sums: Some(SumKernels::OF_TREES),
            layout: SharedLayout::default(),
        })
}

pub(crate) fn sums_in_shared_memory(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    // Only GPUs have a choice.
    let chosen = if device.backend() == Backend::Cuda { 4 } else { 1 };
    for options in options().into_iter().take(chosen) {
        for vectors in VECTORS {
            sums::<f32>(group, device, options, vectors)?;
            sums::<bf16>(group, device, options, vectors)?;
        }
    }
    if device.backend() != Backend::Cuda {
        return Ok(());
    }
    let ranks = group.world_size();
    for options in options() {
        sums_of_several_parts::<f32>(group, device, options)?;
        sums_of_several_parts::<bf16>(group, device, options)?;
    }
    options()[..2].iter().try_for_each(|options| sums::<f32>(group, device, *options, LARGE / 16 / ranks))
}

/// Every rank sends its part of two buffers to every other rank, in place.
pub(crate) fn parts_are_exchanged_in_shared_memory(group: &ProcessGroup, device: &Device) -> Outcome<()> {
    const COUNT: usize = 5000;
    let rank = group.rank();
    let ranks = group.world_size();
    let buffers = [buffer(device, 4 * COUNT * ranks), buffer(device, 4 * COUNT * ranks)];
    let direct = share(
        group,
        device,
        &[&buffers[0], &buffers[1]],
        PeerAccessOptions { sums: Some(SumKernels::OF_TREES), ..PeerAccessOptions::default() },
    )?;
    for round in 0..4 {
        let operand = |owner: usize, index: usize| value(owner, index + 999 * round);
        for buffer in &buffers {
            fill::<f32>(
                device,
                buffer,
                |index| if index / COUNT == rank { operand(rank, index) } else { -1.0 },
            )?;
        }
        let others = || (0..ranks).filter(|other| *other != rank);
        let parts = |owner: usize| buffers.iter().map(move |b| b.region(4 * COUNT * owner, 4 * COUNT));
        let sends: Vec<_> = others().flat_map(|other| parts(rank).map(move |part| (other, part))).collect();
        let receives: Vec<_> =
            others().flat_map(|other| parts(other).map(move |part| (other, part))).collect();
        assert_eq!(group.try_run(Collective::ExchangeShared { sends, receives }, STREAM)?, direct);
        for buffer in &buffers {
            for (index, actual) in values::<f32>(device, buffer, 0, COUNT * ranks)?.into_iter().enumerate() {
                let here = direct || index / COUNT == rank;
                assert_eq!(
                    actual,
                    if here { operand(index / COUNT, index) } else { -1.0 },
                    "element {index}"
                );
            }
        }
    }
    share(
        group,
        device,
        &[],
        PeerAccessOptions { sums: Some(SumKernels::OF_TREES), ..PeerAccessOptions::default() },
    )
    .map(drop)
}
