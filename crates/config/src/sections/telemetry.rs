//! The keys of `[telemetry]`.

use keys::{Row, section};

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
        /// Address, such as `127.0.0.1:9400`, at which rank 0 serves the last step's figures to Prometheus,
        /// at `/metrics`; empty: none.
        listen: String = Row::text().default("\"\"").any_bits().local();
        /// Allow `listen` to be an address that other hosts reach. Anyone there can read the figures.
        listen_publicly: bool = Row::flag().default("false").any_bits();
    }
}
