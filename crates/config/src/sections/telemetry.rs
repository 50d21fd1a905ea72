//! The keys of `[telemetry]`.

use keys::{Error, RawValues, Row, section};

use crate::paths;

use super::MOST;

section! {
    /// `[telemetry]`: progress reports and metrics.
    pub struct Telemetry = "telemetry" {
        /// Steps between progress lines, and between records of all ranks' memory in metrics.jsonl.
        every: u64 = Row::integer(1, MOST).default("10").any_bits();
        /// Steps between hashed steps; 0: none. A hashed step writes hashes of weights, optimizer state,
        /// every operator's outputs and gradients, and summed gradients to `hashes.jsonl`, for `plimsoll
        /// compare`.
        hashes: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Also write each step's metrics as a TensorBoard event file, in the run directory's `tensorboard/`.
        tensorboard: bool = Row::flag().default("false").any_bits();
        /// The device for which to predict step times, which are compared with measured ones: a file written
        /// by `plimsoll plan --describe`, relative to the configuration file, or a name such as `h200`.
        /// Empty: the GPU's description, measured on this host or shipped; none on a CPU.
        device: String = Row::text().default("\"\"").any_bits().local().finish(described);
        /// The address, such as `127.0.0.1:9400`, at which rank 0 serves the last step's metrics to
        /// Prometheus, under `/metrics`; empty: none.
        listen: String = Row::text().default("\"\"").any_bits().local();
        /// Allow a `listen` address that other hosts can reach, where anyone can read the metrics.
        listen_publicly: bool = Row::flag().default("false").any_bits();
    }
}

/// Returns the absolute path of a description file; other names are returned unchanged.
fn described(written: String, raw: &RawValues) -> Result<String, Error> {
    if !written.ends_with(".toml") {
        return Ok(written);
    }
    let path = paths::file(Some(written.into()), raw, Telemetry::device, "description")?;
    Ok(path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default())
}
