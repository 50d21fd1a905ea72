//! Overlap between the regions of one exchange.

use device::Region;

use crate::collective::PeerRegion;

/// Finds a receive that overlaps another region of the same exchange, and describes the overlap.
///
/// Sorts the regions by address first, because an exchange may have thousands of them.
pub(super) fn find(sends: &[PeerRegion<'_>], receives: &[PeerRegion<'_>]) -> Option<String> {
    let all = sends.iter().map(|send| (false, send)).chain(receives.iter().map(|receive| (true, receive)));
    let mut all: Vec<_> = all.filter(|(_, (_, region))| region.bytes > 0).collect();
    all.sort_unstable_by_key(|(_, (_, region))| start(region));
    // Among the regions visited so far: the one that ends last, and the receive that ends last.
    let mut last: Option<&PeerRegion<'_>> = None;
    let mut last_received: Option<&PeerRegion<'_>> = None;
    for (received, entry) in all {
        let reaches = |before: &&PeerRegion<'_>| end(&before.1) > start(&entry.1);
        let other = match received {
            true => last.filter(reaches),
            false => last_received.filter(reaches).map(|_| entry),
        };
        if let Some((peer, other)) = other {
            let start = other.offset;
            let end = other.offset + other.bytes;
            return Some(format!("bytes {start}..{end} of a buffer, for rank {peer}, overlap a receive"));
        }
        let later = |before: Option<&PeerRegion<'_>>| before.is_none_or(|b| end(&b.1) < end(&entry.1));
        if later(last) {
            last = Some(entry);
        }
        if received && later(last_received) {
            last_received = Some(entry);
        }
    }
    None
}

/// Sort key of a region in memory order: its buffer and first byte.
fn start(region: &Region<'_>) -> (usize, usize) {
    (std::ptr::from_ref(region.buffer).addr(), region.offset)
}

/// Buffer and end of a region.
fn end(region: &Region<'_>) -> (usize, usize) {
    (std::ptr::from_ref(region.buffer).addr(), region.offset + region.bytes)
}
