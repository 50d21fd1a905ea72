//! `plimsoll memory`.

use bench::{Listing, memory_listings};
use device::{Device, DeviceOptions, cuda};
use telemetry::table::aligned;
use telemetry::units::grouped;

use crate::error::CliError;
use crate::output::print;

/// Print well-known memory listings of PyTorch, and those of the same programs here
///
/// On the CPU, and beside it on a GPU if there is one: tensors and their owners, segments, a model of five
/// layers, graphs that are kept and consumed, and all counters of `memory_stats` afterwards.
#[derive(clap::Args, Debug)]
pub(crate) struct MemoryArgs {}

/// A device's name, its listings, and its counters after them.
type Column = (String, Vec<Listing>, Vec<(&'static str, i64)>);

fn column(device: &Device) -> Result<Column, CliError> {
    let listings = memory_listings(device)?;
    let counters = device.statistics().iter().collect();
    Ok((device.description().name.clone(), listings, counters))
}

/// Prints the listings. Errors: out of memory; a GPU that does not start; standard output cannot be written.
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
    let mut text = String::new();
    for (number, listing) in columns[0].1.iter().enumerate() {
        let mut rows = vec![vec![listing.title.to_owned(), "PyTorch".to_owned()]];
        rows[0].extend(names());
        for (index, figure) in listing.figures.iter().enumerate() {
            let known = figure.known.map_or_else(String::new, grouped);
            let mut row = vec![format!("  {}", figure.what), known];
            row.extend(columns.iter().map(|(_, listings, _)| grouped(listings[number].figures[index].bytes)));
            rows.push(row);
        }
        text += &aligned(&rows, 1, &[1]);
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
