//! The keys of `[telemetry]`.

use keys::{Error, RawValues, Row, section};

use crate::paths;

use super::MOST;

section! {
    /// `[telemetry]`: reports of progress.
    pub struct Telemetry = "telemetry" {
        /// Steps between lines of progress, and between records of the memory of all ranks in metrics.jsonl.
        every: u64 = Row::integer(1, MOST).default("10").any_bits();
        /// Steps between steps whose arrays are hashed into `hashes.jsonl`, for `plimsoll compare`: weights,
        /// optimizer state, every operator's outputs and gradients, summed gradients; 0: none.
        hashes: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Also write each step's figures as a TensorBoard event file, in `tensorboard/` of the run.
        tensorboard: bool = Row::flag().default("false").any_bits();
        /// The device for which steps are predicted and compared with measured ones: a file that `plimsoll
        /// plan --describe` wrote, relative to the configuration, or a name such as `h200`; empty: the GPU's
        /// description, measured on this host or shipped; on a CPU none.
        device: String = Row::text().default("\"\"").any_bits().local().finish(described);
        /// Address, such as `127.0.0.1:9400`, at which rank 0 serves the last step's figures to Prometheus,
        /// at `/metrics`; empty: none.
        listen: String = Row::text().default("\"\"").any_bits().local();
        /// Allow `listen` to be an address that other hosts reach. Anyone there can read the figures.
        listen_publicly: bool = Row::flag().default("false").any_bits();
    }
}

/// Returns the absolute path of a file of a description, or else the name as it is.
fn described(written: String, raw: &RawValues) -> Result<String, Error> {
    if !written.ends_with(".toml") {
        return Ok(written);
    }
    let path = paths::file(Some(written.into()), raw, Telemetry::device, "description")?;
    Ok(path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default())
}
