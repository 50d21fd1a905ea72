//! Well-known memory listings: small programs from tutorials on PyTorch's allocator, run on a device of this
//! host.

mod networks;
mod taken;
mod tensors;

use device::Device;

use crate::error::Result;
pub use taken::{FigureOrigin, ListedFigure, Listing, PyTorchFigures};

/// Runs the listings on a device that is otherwise unused.
///
/// # Errors
/// Memory runs out; 400 MB are needed.
pub fn memory_listings(device: &Device) -> Result<Vec<Listing>> {
    Ok(vec![
        tensors::two_tensors(device)?,
        tensors::two_owners(device)?,
        tensors::one_matrix(device)?,
        tensors::many_floats(device)?,
        networks::five_layers(device)?,
        networks::graphs(device)?,
        networks::ten_epochs(device)?,
    ])
}
