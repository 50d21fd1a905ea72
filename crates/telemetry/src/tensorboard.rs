//! TensorBoard event files: the scalars of every step, under torchtitan's names.
//!
//! A file is a sequence of records: length, its checksum, a protobuf-encoded `Event`, its checksum.

use std::fs::OpenOptions;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use system::file_error::FileContext;
use system::{input, output};

use crate::error::{Result, Unreadable};
use crate::expert_loads::{EXPERT_LOADS, ExpertLoads};
use crate::metrics::LATER_LOSSES;
use crate::metrics::{MetricsWriter, StepMetrics};
use crate::prediction::PREDICTED_SECONDS;

/// Directory of event files in a run directory.
pub const DIRECTORY: &str = "tensorboard";
/// Name of the file; TensorBoard looks for `tfevents` in it.
const FILE: &str = "events.out.tfevents.0.plimsoll";
/// Contents of the first record.
const VERSION: &str = "brain.Event:2";
/// Maximum bytes of an event, which holds the scalars of one step.
const MOST_EVENT: u64 = 64 << 20;
/// Bytes of a GiB.
const GIB: f64 = (1_u64 << 30) as f64;

/// Writes an event file on a separate thread, so that no step waits for a disk.
#[derive(Debug)]
pub struct TensorBoardWriter {
    file: MetricsWriter,
    world_size: f64,
}

impl TensorBoardWriter {
    /// Continues the file in `run_dir` after the records of step `step`, removing later and incomplete
    /// records. Starts a file if there is none.
    pub fn resume(run_dir: &Path, step: u64, world_size: usize) -> Result<Self> {
        let directory = run_dir.join(DIRECTORY);
        std::fs::create_dir_all(&directory).context(&directory, "create it")?;
        let path: PathBuf = directory.join(FILE);
        let length = match input::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            file => file.and_then(|file| intact_length(BufReader::new(file), step)),
        };
        let length = length.unreadable(&path)?;
        let mut options = OpenOptions::new();
        let file = output::open_own(&path, options.write(true).create(true).truncate(false));
        let mut file = file.context(&path, "open it")?;
        let begin = if length == 0 { record(&version()) } else { Vec::new() };
        let ready = file
            .set_len(length)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .and_then(|_| file.write_all(&begin));
        ready.context(&path, "continue it")?;
        Ok(TensorBoardWriter { file: MetricsWriter::start(&path, file)?, world_size: world_size as f64 })
    }

    /// Adds the scalars of a step without waiting.
    pub fn write(&mut self, metrics: &StepMetrics) -> Result<()> {
        self.file.write_bytes(record(&event(metrics.step, &scalars(metrics, self.world_size))))
    }

    /// Waits until all records are in the file.
    pub fn finish(self) -> Result<()> {
        self.file.finish()
    }
}

/// Returns the scalars of a step. Throughput is per rank; memory is the maximum over ranks, or rank 0's in
/// steps without records of all ranks. "Active" bytes equal allocated bytes, because nothing is freed late.
fn scalars(metrics: &StepMetrics, world_size: f64) -> Vec<(String, f64)> {
    let most = |own: u64, bytes_in: fn(&crate::RankStep) -> u64| {
        metrics.ranks.iter().map(bytes_in).fold(own, u64::max)
    };
    let active = most(metrics.step_peak_allocated_bytes, |rank| rank.step_peak_allocated_bytes);
    let reserved = most(metrics.step_peak_reserved_bytes, |rank| rank.step_peak_reserved_bytes);
    let capacity = metrics.ranks.iter().map(|rank| rank.capacity_bytes).min().filter(|bytes| *bytes > 0);
    let of_capacity = |bytes: u64| capacity.map(|capacity| 100.0 * bytes as f64 / capacity as f64);
    let optional = |key: &str| metrics.more.get(key).and_then(serde_json::Value::as_f64);
    let all = [
        ("loss_metrics/global_avg_loss", Some(metrics.loss.into())),
        ("grad_norm", Some(metrics.gradient_norm.into())),
        ("lr", Some(metrics.learning_rate.into())),
        ("throughput(tps)", metrics.tokens_per_second.map(|speed| speed / world_size)),
        ("mfu(%)", metrics.mfu.map(|mfu| 100.0 * mfu)),
        ("time_metrics/end_to_end(s)", metrics.seconds),
        ("time_metrics/predicted(s)", optional(PREDICTED_SECONDS)),
        ("memory/max_active(GiB)", Some(active as f64 / GIB)),
        ("memory/max_active(%)", of_capacity(active)),
        ("memory/max_reserved(GiB)", Some(reserved as f64 / GIB)),
        ("memory/max_reserved(%)", of_capacity(reserved)),
        ("validation_metrics/loss", optional("validation_loss")),
        ("validation_metrics/top_1", optional("validation_top_1")),
        ("validation_metrics/top_5", optional("validation_top_5")),
        ("rewards/accuracies", optional("reward_accuracy")),
        ("rewards/margins", optional("reward_margin")),
        ("rewards/chosen", optional("chosen_reward")),
        ("rewards/rejected", optional("rejected_reward")),
        ("validation_metrics/rewards/accuracies", optional("validation_reward_accuracy")),
        ("validation_metrics/rewards/margins", optional("validation_reward_margin")),
    ];
    let scalars = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    scalars.chain(later_losses(metrics)).chain(loads(metrics)).collect()
}

/// Returns the losses of the modules that predict later tokens.
fn later_losses(metrics: &StepMetrics) -> impl Iterator<Item = (String, f64)> {
    let losses = metrics.more.get(LATER_LOSSES).and_then(serde_json::Value::as_array);
    let losses = losses.into_iter().flatten().filter_map(serde_json::Value::as_f64);
    losses.enumerate().map(|(module, loss)| (format!("loss_metrics/later_token_{}", module + 1), loss))
}

/// Returns each expert's load divided by its layer's mean, and each layer's largest such ratio.
fn loads(metrics: &StepMetrics) -> impl Iterator<Item = (String, f64)> {
    let loads = metrics.more.get(EXPERT_LOADS).map(ExpertLoads::of_json).unwrap_or_default();
    loads.into_iter().flat_map(|layer| {
        let expert = |(expert, tokens): (usize, &u32)| {
            (format!("expert_loads/layer_{}/expert_{expert}", layer.layer), layer.of_mean(*tokens))
        };
        let most = (format!("expert_loads/layer_{}/largest", layer.layer), layer.imbalance());
        layer.tokens.iter().enumerate().map(expert).chain([most]).collect::<Vec<_>>()
    })
}

/// Encodes an event: time (field 1), step (2), and a summary (5) of values, each with a tag (1) and a number
/// (2).
fn event(step: u64, scalars: &[(String, f64)]) -> Vec<u8> {
    let mut event = time();
    event.push(2 << 3);
    varint(&mut event, step);
    let mut summary = Vec::new();
    for (tag, value) in scalars {
        let mut entry = Vec::new();
        field(&mut entry, 1, tag.as_bytes());
        entry.push(2 << 3 | 5);
        // TensorBoard stores numbers as f32.
        entry.extend((*value as f32).to_le_bytes());
        field(&mut summary, 1, &entry);
    }
    field(&mut event, 5, &summary);
    event
}

/// Encodes the first event, which holds the version (field 3).
fn version() -> Vec<u8> {
    let mut event = time();
    field(&mut event, 3, VERSION.as_bytes());
    event
}

/// Encodes the current time in seconds, the first field of every event.
fn time() -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let mut event = vec![1 << 3 | 1];
    event.extend(now.to_le_bytes());
    event
}

fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        // The lowest seven bits.
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + 16);
    record.extend(length);
    record.extend(masked_crc32c(&length).to_le_bytes());
    record.extend(event);
    record.extend(masked_crc32c(event).to_le_bytes());
    record
}

/// Returns the length in bytes of the intact records up to step `step`. Reads one record at a time.
fn intact_length(mut records: impl Read, step: u64) -> io::Result<u64> {
    let mut length = 0;
    while let Some(event) = next_event(&mut records)? {
        if step_of(&event).is_none_or(|own| own > step) {
            break;
        }
        length += event.len() as u64 + 16;
    }
    Ok(length)
}

/// Returns the event of the next record; `None` if it is incomplete or damaged.
fn next_event(records: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let Some(head) = next_bytes(records, 12)? else { return Ok(None) };
    let (length, sum) = head.split_at(8);
    let bytes = length.try_into().map_or(u64::MAX, u64::from_le_bytes);
    if sum != masked_crc32c(length).to_le_bytes() || bytes > MOST_EVENT {
        return Ok(None);
    }
    let Some(mut event) = next_bytes(records, bytes + 4)? else { return Ok(None) };
    let sum = event.split_off(bytes as usize);
    Ok((sum == masked_crc32c(&event).to_le_bytes()).then_some(event))
}

/// Returns the next `count` bytes; `None` if there are fewer.
fn next_bytes(records: &mut impl Read, count: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = records.take(count).read_to_end(&mut bytes)? as u64;
    Ok((read == count).then_some(bytes))
}

/// Returns the step of an event that this module wrote; 0 for the version event.
fn step_of(event: &[u8]) -> Option<u64> {
    let rest = event.get(9..)?;
    let (tag, digits) = rest.split_first()?;
    if *tag != 2 << 3 {
        return Some(0);
    }
    let end = digits.iter().position(|byte| byte & 0x80 == 0)?;
    digits
        .get(..=end)?
        .iter()
        .rev()
        .try_fold(0_u64, |step, byte| step.checked_mul(128).map(|step| step | u64::from(byte & 0x7f)))
}

/// Returns the CRC-32C of `bytes`, masked as in TensorFlow's records.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    let crc = !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    });
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_experts_are_scalars() {
        let loads = [ExpertLoads { layer: 2, tokens: vec![3, 1] }];
        let mut metrics = StepMetrics::default();
        metrics.more.insert(EXPERT_LOADS.to_owned(), ExpertLoads::to_json(&loads));
        let scalars = scalars(&metrics, 1.0);
        let scalar = |name: &str| scalars.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
        assert_eq!(scalar("expert_loads/layer_2/expert_1"), Some(0.5));
        assert_eq!(scalar("expert_loads/layer_2/largest"), Some(1.5));
    }

    #[test]
    fn records_have_checksums_and_end_at_a_step() {
        // The CRC-32C of "123456789" is e3069283 (RFC 3720's check value).
        assert_eq!(masked_crc32c(b"123456789"), 0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8));
        let length = |bytes: &[u8], step| intact_length(bytes, step).unwrap() as usize;
        let mut file = record(&version());
        let mut ends = vec![file.len()];
        for step in [1, 2, 300, 70_000] {
            file.extend(record(&event(step, &[("lr".to_owned(), 0.5)])));
            ends.push(file.len());
        }
        for (step, end) in [(0, 0), (1, 1), (2, 2), (299, 2), (300, 3), (80_000, 4)] {
            assert_eq!(length(&file, step), ends[end], "{step}");
        }
        // An incomplete or damaged record is cut off with all after it.
        assert_eq!(length(&file[..file.len() - 1], 80_000), ends[3]);
        let index = ends[1] + 20;
        file[index] ^= 1;
        assert_eq!(length(&file, 80_000), ends[1]);
        assert_eq!(length(b"text", 5), 0);
    }
}
