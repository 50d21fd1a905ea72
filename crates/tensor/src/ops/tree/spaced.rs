//! Sums of many tensors at equal distances in memory, such as a shard received from every rank.

use std::ops::Range;

use device::{Family, Function, StreamKind};

use super::order::{JOIN_BITS, PARTS_PER_WORD, SumTree};
use crate::ops::kernels::family;
use crate::ops::{check, gpu};
use crate::{Result, Tensor};

const THREADS: u32 = 128;
/// Number of parts that a thread loads at once.
const GROUP: usize = PARTS_PER_WORD;
/// Maximum number of parts. Their order is a kernel argument, and a kernel has 4 KiB of arguments.
const MOST_PARTS: usize = 4096;
/// Maximum number of parts outside the buffer. These are the rank's own: the subtrees of its run of lanes, at
/// most two of each size.
const MOST_ELSEWHERE: usize = 32;
/// Maximum number of partial sums that the kernel holds at once.
const MOST_DEPTH: usize = 14;
/// Number of words that encode the order.
const WORDS: usize = MOST_PARTS / PARTS_PER_WORD;
/// Maximum blocks of a launch per multiprocessor.
const BLOCKS: u32 = 8;

pub(in crate::ops) static FAMILY: Family = family!("spaced_tree", headers: ["tree.cuh"], constants: &[
    ("THREADS", THREADS),
    ("GROUP", GROUP as u32),
    ("MOST_PARTS", MOST_PARTS as u32),
    ("MOST_ELSEWHERE", MOST_ELSEWHERE as u32),
    ("MOST_DEPTH", MOST_DEPTH as u32),
    ("JOIN_BITS", JOIN_BITS as u32),
]);

/// Addresses of parts at equal distances in one buffer, except for a range of parts elsewhere.
#[derive(Debug, PartialEq, Eq)]
struct Spacing {
    /// Index of a part that is in the buffer.
    anchor: usize,
    /// Distance in bytes from one part to the next. Negative distances wrap around.
    stride: u64,
    /// The consecutive parts that are not in the buffer.
    elsewhere: Range<usize>,
}

/// Adds `parts` into `target` in one launch. Returns false, without a launch, if they are too many or not at
/// equal distances.
pub(super) fn add(target: &Tensor, parts: &[Tensor], tree: &SumTree, stream: StreamKind) -> Result<bool> {
    let dtype = target.dtype();
    let elements = target.elements();
    let fits = parts.len() <= MOST_PARTS && tree.depth() <= MOST_DEPTH && check::DTYPES.contains(&dtype);
    let Some(Spacing { anchor, stride, elsewhere }) = spacing(parts).filter(|_| fits) else {
        return Ok(false);
    };
    let device = target.device();
    let most = BLOCKS * device.description().multiprocessors.max(1);
    let blocks = elements.div_ceil(THREADS as usize).min(most as usize) as u32;
    let mut launch = device.kernel(Function::new(&FAMILY, "spaced_tree").with_dtype(dtype)).on(stream);
    launch = launch.read(&parts[anchor]).u64(stride);
    for part in &parts[elsewhere.clone()] {
        launch = launch.read(part);
    }
    launch = launch.structure(elsewhere.len(), MOST_ELSEWHERE).write(target);
    launch = launch.u64(elements as u64).u32(anchor as u32).u32(elsewhere.start as u32);
    launch = launch.u32(elsewhere.end as u32).u32(parts.len() as u32);
    launch = tree.packed::<WORDS>().into_iter().fold(launch, |launch, word| launch.u64(word));
    let bytes = target.bytes() * (parts.len() + 1);
    let launch = launch.structure(WORDS, WORDS).cost(bytes as u64, (elements * (parts.len() - 1)) as u64);
    launch.launch([blocks, 1, 1], THREADS)?;
    Ok(true)
}

/// Returns the addresses as a spacing; `None` if the parts are not at equal distances.
fn spacing(parts: &[Tensor]) -> Option<Spacing> {
    let addresses: Vec<u64> = parts.iter().map(gpu::address).collect();
    // Few parts lie elsewhere, so that the first two or the last two do not.
    [0, parts.len().checked_sub(2)?].into_iter().find_map(|anchor| {
        let stride = addresses[anchor + 1].wrapping_sub(addresses[anchor]);
        let is_elsewhere = |part: &usize| {
            let distance = stride.wrapping_mul((*part as u64).wrapping_sub(anchor as u64));
            let is_in_line = addresses[*part].wrapping_sub(addresses[anchor]) == distance;
            !(is_in_line && parts[*part].shares_storage(&parts[anchor]))
        };
        let first = (0..parts.len()).find(is_elsewhere);
        let end = (0..parts.len()).rfind(is_elsewhere).map_or(0, |last| last + 1);
        let elsewhere = first.unwrap_or(0)..end;
        (elsewhere.len() <= MOST_ELSEWHERE).then_some(Spacing { anchor, stride, elsewhere })
    })
}

#[cfg(test)]
mod tests {
    use device::{Category, DType, Device, DeviceOptions, Request};

    use super::{Spacing, Tensor, spacing};

    #[test]
    fn received_parts_lie_at_equal_distances_but_for_the_own() {
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let request = Request::new(Category::Other, "test");
        let [buffer, own] = [100 * 8, 40 * 8]
            .map(|elements| Tensor::empty(&device, [elements], DType::F32, request).unwrap());
        let view = |buffer: &Tensor, part: usize| buffer.view(part * 8, [8]).unwrap();
        for own_parts in [0..0, 0..1, 1..2, 40..72, 99..100, 68..100] {
            let part = |part: usize| match own_parts.contains(&part) {
                true => view(&own, 2 * (part - own_parts.start) % 40),
                false => view(&buffer, part),
            };
            let parts: Vec<Tensor> = (0..100).map(part).collect();
            let anchor = if own_parts.contains(&0) || own_parts.contains(&1) { 98 } else { 0 };
            let elsewhere = own_parts.clone();
            assert_eq!(spacing(&parts), Some(Spacing { anchor, stride: 32, elsewhere }), "{own_parts:?}");
        }
        // Too many elsewhere, unequal distances, one part.
        let many: Vec<_> =
            (0..100).map(|part| view(if part < 40 { &own } else { &buffer }, part % 40)).collect();
        let squares: Vec<_> = (0..80).map(|part| view(&buffer, part * part % 97)).collect();
        assert_eq!([many, squares, vec![view(&own, 0)]].map(|parts| spacing(&parts)), [None, None, None]);
    }
}
