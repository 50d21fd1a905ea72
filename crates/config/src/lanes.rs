//! Numbers of lanes: the powers of two that divide the micro-batches of a step.

/// The most lanes by default.
const MOST_DEFAULT_LANES: u64 = 8;

/// Returns the largest power of two, at most 8, that divides the micro-batches of a step.
pub(crate) fn default_lanes(micro_batches: u64) -> u64 {
    power_of_two_divisors(micro_batches).take_while(|lanes| *lanes <= MOST_DEFAULT_LANES).last().unwrap_or(1)
}

/// Returns the powers of two that divide `number`: 1, 2, 4 ….
pub(crate) fn power_of_two_divisors(number: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS)
        .map(|bit| 1_u64 << bit)
        .take_while(move |power| number.is_multiple_of(*power) && *power <= number)
}

pub(crate) fn is_power_of_two_divisor(lanes: usize, number: usize) -> bool {
    lanes.is_power_of_two() && number.is_multiple_of(lanes)
}

/// Returns the powers of two that divide `number` in words: `1, 2 or 4`.
pub(crate) fn alternatives(number: usize) -> String {
    let mut all: Vec<String> = power_of_two_divisors(number as u64).map(|power| power.to_string()).collect();
    match all.pop() {
        Some(last) if all.is_empty() => last,
        Some(last) => format!("{} or {last}", all.join(", ")),
        None => String::new(),
    }
}
