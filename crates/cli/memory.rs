//! `plimsoll memory`.

use bench::{ListedFigure, Listing, memory_listings};
use device::{Device, DeviceOptions, cuda};
use telemetry::table::aligned;
use telemetry::units::grouped;

use crate::error::CliError;
use crate::output::print;

/// Print well-known memory listings of PyTorch beside the same programs' results here
///
/// Runs on the CPU, and also on a GPU if there is one: tensors and their owners, empty_cache(), segments, a
/// network of five layers, kept and consumed graphs, ten epochs of training, and finally all counters of
/// `memory_stats`. PyTorch's figures are printed by the listing, measured on a GPU, or computed from its
/// allocator's rules, as noted in each row. In a run, `memory.empty_cache_every` empties the cache.
#[derive(clap::Args, Debug)]
pub(crate) struct MemoryArgs {}

/// Footnote about PyTorch's columns.
const NOTE: &str = "\
PyTorch's figures are of a GPU. printed: the listing prints them. measured: with PyTorch 2.11.0 and CUDA 13.0,
less cuBLAS's workspaces. computed: from the rules of its allocator.
";

/// Name of a device, its listings, and the counters after them.
type Column = (String, Vec<Listing>, Vec<(&'static str, i64)>);

fn column(device: &Device) -> Result<Column, CliError> {
    let listings = memory_listings(device)?;
    let counters = device.statistics().iter().collect();
    Ok((device.description().name.clone(), listings, counters))
}

/// Runs the command: prints the listings.
///
/// # Errors
/// Memory runs out, a GPU fails to start, or standard output cannot be written.
pub(crate) fn run(_: &MemoryArgs) -> Result<(), CliError> {
    let failed = |error: device::DeviceError| CliError::Measurement(error.to_string());
    let options = DeviceOptions::default();
    let mut columns = vec![column(&Device::cpu(0, &options).map_err(failed)?)?];
    if cuda::availability().is_ok() {
        let gpu = Device::cuda(0, 0, tensor::ops::FAMILIES, &options).map_err(failed)?;
        columns.push(column(&gpu)?);
    }
    print(&text(&columns))
}

fn text(columns: &[Column]) -> String {
    let names = || columns.iter().map(|(name, ..)| name.clone());
    let mut text = format!("{NOTE}\n");
    for (number, listing) in columns[0].1.iter().enumerate() {
        let mut rows = vec![header(listing.title, names())];
        for (index, figure) in listing.figures.iter().enumerate() {
            let mut row = pytorch_row(figure);
            for (_, listings, _) in columns {
                let ListedFigure { allocated, reserved, .. } = &listings[number].figures[index];
                row.extend([grouped(*allocated), reserved.map_or_else(String::new, grouped)]);
            }
            rows.push(row);
        }
        text += &aligned(&rows, 2, &[1]);
        text.push('\n');
    }
    let mut rows = vec![vec!["memory_stats, of all listings together".to_owned()]];
    rows[0].extend(names());
    for (index, (key, _)) in columns[0].2.iter().enumerate() {
        let mut row = vec![format!("  {key}")];
        row.extend(columns.iter().map(|(_, _, counters)| counters[index].1.to_string()));
        rows.push(row);
    }
    text + &aligned(&rows, 1, &[1])
}

/// Returns the header of a listing: columns for PyTorch, and two for each device.
fn header(title: &str, devices: impl Iterator<Item = String>) -> Vec<String> {
    let mut row: Vec<String> = [title, "origin", "PyTorch: allocated", "reserved"].map(str::to_owned).into();
    row.extend(devices.flat_map(|name| [format!("{name}: allocated"), "reserved".to_owned()]));
    row
}

/// Returns the first cells of a row: its name and PyTorch's figures.
fn pytorch_row(figure: &ListedFigure) -> Vec<String> {
    let mut row = vec![format!("  {}", figure.what)];
    row.extend(match &figure.pytorch {
        Some(pytorch) => [
            pytorch.origin.name().to_owned(),
            grouped(pytorch.allocated),
            pytorch.reserved.map_or_else(String::new, grouped),
        ],
        None => [const { String::new() }; 3],
    });
    row
}
