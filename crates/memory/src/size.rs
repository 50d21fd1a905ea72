//! Size arithmetic: rounding of requests, and sizes of segments.

/// Granularity of block sizes and size of the smallest block: 512 bytes.
pub const MIN_BLOCK: u64 = 512;
/// Largest rounded size that the small pool serves: 1 MiB.
pub const SMALL_SIZE: u64 = 1 << 20;
/// Segment size, and page size of expandable segments, in the small pool: 2 MiB.
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// Smallest rounded size for which a segment of its own is taken: 10 MiB.
pub const MIN_LARGE_ALLOCATION: u64 = 10 << 20;
/// Granularity of segments with a single block: 2 MiB.
pub const LARGE_ROUNDING: u64 = 2 << 20;
/// Default segment size for blocks between 1 and 10 MiB, and page size in the large pool: 20 MiB.
pub const DEFAULT_LARGE_SEGMENT: u64 = 20 << 20;
/// Exclusive upper bound of a request: 1 EiB.
pub const REQUEST_LIMIT: u64 = 1 << 60;

/// Rounds `bytes` up to a multiple of `step`.
pub(crate) fn round_up(bytes: u64, step: u64) -> u64 {
    bytes.div_ceil(step) * step
}

/// Returns the entry of the table of divisions for requests of `bytes`. Entry k covers 2ᵏ to 2ᵏ⁺¹ MiB; the
/// first also everything smaller, the last everything larger.
fn division_slot(bytes: u64) -> usize {
    (bytes.max(1).ilog2().saturating_sub(20) as usize).min(15)
}

/// Returns the block size for a request of `bytes`, at least 1 and below [`REQUEST_LIMIT`].
#[inline]
pub(crate) fn round_request(bytes: u64, divisions: Option<&[u64; 16]>) -> u64 {
    if bytes < MIN_BLOCK {
        return MIN_BLOCK;
    }
    if let Some(table) = divisions {
        let d = table[division_slot(bytes)];
        if d > 1 && bytes > MIN_BLOCK * d {
            return round_to_division(bytes, d);
        }
    }
    (bytes + (MIN_BLOCK - 1)) & !(MIN_BLOCK - 1)
}

/// Rounds up to the next of `divisions` equal steps between two powers of two.
fn round_to_division(bytes: u64, divisions: u64) -> u64 {
    if bytes.is_power_of_two() {
        return bytes;
    }
    let power = 1u64 << bytes.ilog2();
    let step = power >> divisions.ilog2();
    if step == 0 { power << 1 } else { round_up(bytes, step) }
}

/// Returns the bytes to take from the driver for a block of the rounded size `size`.
pub(crate) fn segment_size(size: u64, large_segment: u64) -> u64 {
    if size <= SMALL_SIZE {
        SMALL_SEGMENT
    } else if size < MIN_LARGE_ALLOCATION {
        large_segment
    } else {
        round_up(size, LARGE_ROUNDING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_as_measured() {
        let four = [4; 16];
        let mut list = [0; 16];
        list[..9].fill(1);
        list[9] = 2;
        list[10] = 4;
        list[11..].fill(8);
        let cases: [(u64, Option<&[u64; 16]>, u64); 16] = [
            (1, None, 512),
            (512, None, 512),
            (513, None, 1024),
            (3000, None, 3072),
            (1 << 20, None, 1 << 20),
            ((1 << 20) + 1, None, 1_049_088),
            (100, Some(&four), 512),
            (1200, Some(&four), 1536),
            (2049, Some(&four), 2560),
            (3000, Some(&four), 3072),
            (5_000_000, Some(&four), 5_242_880),
            (104_857_601, Some(&list), 104_858_112),
            (314_572_801, Some(&list), 314_573_312),
            (629_145_601, Some(&list), 805_306_368),
            (1_153_433_601, Some(&list), 1_342_177_280),
            (2_306_867_201, Some(&list), 2_415_919_104),
        ];
        for (bytes, divisions, expected) in cases {
            assert_eq!(round_request(bytes, divisions), expected, "{bytes} with {divisions:?}");
        }
    }

    #[test]
    fn segments_follow_the_rounded_size() {
        for (request, expected) in [
            (1, 2 << 20),
            (1 << 20, 2 << 20),
            ((1 << 20) + 1, 20 << 20),
            (10_485_248, 20 << 20),
            (10_485_249, 10 << 20),
            (11 << 20, 12 << 20),
        ] {
            assert_eq!(
                segment_size(round_request(request, None), DEFAULT_LARGE_SEGMENT),
                expected,
                "{request}"
            );
        }
    }
}
