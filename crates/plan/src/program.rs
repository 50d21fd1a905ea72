//! Memory of this program's own pages and libraries in a run.

use std::fs;
use std::ops::Range;

/// Fraction of the program file's mapped pages that a run on the CPU touches, measured on Linux; the other
/// pages are for other commands and devices.
const READ: (u64, u64) = (1, 2);
/// Bytes of system libraries, MPI's libraries and the heap in a run, measured on Linux.
const LIBRARIES: u64 = 13 << 19;
/// Assumed bytes of the mapped file if the system does not report them.
const TYPICAL: u64 = 24 << 20;

/// Returns the resident bytes of a run by this program: its code, libraries and heap.
pub(crate) fn resident_bytes() -> u64 {
    let own = (resident_bytes as fn() -> u64 as *const ()).addr() as u64;
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    LIBRARIES + mapped_bytes(&maps, own).unwrap_or(TYPICAL) / READ.1 * READ.0
}

/// Returns the bytes that `maps` (the text of `/proc/self/maps`) maps from the file with code at address
/// `own`. Only adjacent lines are counted, because a symbol reader may map the file again elsewhere.
fn mapped_bytes(maps: &str, own: u64) -> Option<u64> {
    let mappings: Vec<_> = maps.lines().filter_map(mapping).collect();
    let file = mappings.chunk_by(|one, next| one.file == next.file);
    let own = |mapping: &Mapping<'_>| mapping.file.contains('/') && mapping.addresses.contains(&own);
    let mut own = file.filter(|mappings| mappings.iter().any(own));
    Some(own.next()?.iter().map(|Mapping { addresses, .. }| addresses.end - addresses.start).sum())
}

/// A line of `/proc/self/maps`.
struct Mapping<'a> {
    addresses: Range<u64>,
    /// Device, inode and path of the mapped file.
    file: &'a str,
}

fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut fields = line.splitn(4, ' ');
    let addresses = fields.next()?;
    let file = fields.nth(2)?;
    let (start, end) = addresses.split_once('-')?;
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).ok());
    Some(Mapping { addresses: start?..end?.max(start?), file })
}

#[cfg(test)]
mod tests {
    use super::{mapped_bytes, resident_bytes};

    #[test]
    fn the_mappings_of_the_file_with_the_code_are_summed() {
        let maps = "1000-3000 r--p 00000000 fe:00 7    /usr/bin/plimsoll run\n\
            3000-7000 r-xp 00002000 fe:00 7    /usr/bin/plimsoll run\n\
            8000-9000 rw-p 00000000 00:00 0 \n\
            9000-a000 r-xp 00000000 fe:00 8    /lib/libc.so.6\n\
            b000-f000 r--p 00000000 fe:00 7    /usr/bin/plimsoll run\n\
            f000-f800 r-xp 00000000 00:00 0    [vdso]\n";
        for (own, bytes) in [(0x3000, Some(0x6000)), (0x9fff, Some(0x1000)), (0x8000, None), (0xf000, None)] {
            assert_eq!(mapped_bytes(maps, own), bytes, "{own:x}");
        }
        assert_eq!(mapped_bytes("", 0), None);
        assert_eq!(resident_bytes(), resident_bytes());
    }
}
