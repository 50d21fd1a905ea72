//! Memory listings of tensors that are created, shared and dropped.

use device::Device;

use super::taken::{Listing, Taken, computed, measured, printed};
use crate::error::Result;

const MIB: usize = 1 << 20;
/// Bytes of the two tensors of the first listings together.
const BOTH: u64 = 20_971_520;

pub(super) fn two_tensors(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "tensors of 4 and 16 MiB")?;
    let first = taken.floats(MIB)?;
    let second = taken.floats(4 * MIB)?;
    taken.row("both", printed(BOTH, BOTH));
    drop(first);
    taken.row("without the first", printed(16_777_216, BOTH));
    drop(second);
    taken.row("without the second", computed(0, BOTH));
    device.empty_cache()?;
    taken.row("after empty_cache()", printed(0, 0));
    Ok(taken.listing)
}

pub(super) fn two_owners(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "the same, each with a second owner")?;
    let first = taken.floats(MIB)?;
    let second = taken.floats(4 * MIB)?;
    let others = (first.clone(), second.clone());
    taken.row("both", printed(BOTH, BOTH));
    drop(first);
    taken.row("without an owner of the first", printed(BOTH, BOTH));
    drop(second);
    taken.row("without an owner of the second", printed(BOTH, BOTH));
    device.empty_cache()?;
    taken.row("after empty_cache()", printed(BOTH, BOTH));
    drop(others);
    taken.row("without the other owners", measured(0, BOTH));
    device.empty_cache()?;
    taken.row("after empty_cache()", measured(0, 0));
    Ok(taken.listing)
}

pub(super) fn one_matrix(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "a tensor of 1000 × 1000 floats")?;
    let matrix = taken.floats(1_000_000)?;
    taken.row("3.81 and 20.00 MiB", printed(4_000_256, BOTH));
    drop(matrix);
    Ok(taken.listing)
}

pub(super) fn many_floats(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "a tensor of 100,000,000 floats")?;
    let floats = taken.floats(100_000_000)?;
    taken.row("a large tensor, in whole 2 MiB", computed(400_556_032, 400_556_032));
    drop(floats);
    Ok(taken.listing)
}
