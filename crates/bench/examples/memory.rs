//! Prints the well-known memory listings on the CPU: `cargo run -p plimsoll-bench --example memory`.

use std::io::Write;

use bench::memory_listings;
use device::{Device, DeviceOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu(0, &DeviceOptions::default())?;
    let mut out = std::io::stdout().lock();
    for listing in memory_listings(&device)? {
        writeln!(out, "{}", listing.title)?;
        for figure in listing.figures {
            writeln!(out, "  {}: {}", figure.what, figure.allocated)?;
        }
    }
    Ok(())
}
