//! Number of lanes: any divisor of the micro-batches per step, by default a power of two.

/// Maximum default number of lanes.
const MOST_DEFAULT_LANES: u64 = 8;

/// Returns the largest power of two up to 8 that divides the number of micro-batches per step.
pub(crate) fn default_lanes(micro_batches: u64) -> u64 {
    power_of_two_divisors(micro_batches).take_while(|lanes| *lanes <= MOST_DEFAULT_LANES).last().unwrap_or(1)
}

/// Returns the powers of two that divide `number`: 1, 2, 4 ….
pub(crate) fn power_of_two_divisors(number: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS)
        .map(|bit| 1_u64 << bit)
        .take_while(move |power| number.is_multiple_of(*power) && *power <= number)
}

/// Returns the smallest divisor of `number` that is at least `least`; `None` if there is none.
pub(crate) fn divisor_from(least: usize, number: usize) -> Option<usize> {
    (least..=number).find(|candidate| number.is_multiple_of(*candidate))
}

/// Formats the divisors of `number` next to `near`, which does not divide it: `4 or 6`.
pub(crate) fn divisors_around(near: usize, number: usize) -> String {
    let below = (1..=near.min(number)).rev().find(|candidate| number.is_multiple_of(*candidate));
    let both = below.into_iter().chain(divisor_from(near, number));
    both.map(|divisor| divisor.to_string()).collect::<Vec<_>>().join(" or ")
}
