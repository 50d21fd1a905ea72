//! The format of vectors: one script per line, `{"op": "a p1 512 0", "ptr": …, "d": [[counter, value], …]}`.

use serde_json::Value;

use super::fields::{Field, Names};
use super::recording::{FinalSegment, Operation, Recording, RecordingError, Step};
use crate::pool::PoolId;
use crate::raw::Stream;
use crate::statistics::{Metric, PoolKind};

/// Returns the keys of the counters in the order of their numbers.
fn keys() -> Vec<String> {
    let fields = ["current", "peak", "allocated", "freed"];
    let mut keys = Vec::new();
    for metric in Metric::ALL {
        for kind in PoolKind::ALL {
            keys.extend(fields.map(|field| format!("{}.{}.{field}", metric.name(), kind.name())));
        }
    }
    for metric in ["oversize_allocations", "oversize_segments"] {
        keys.extend(fields.map(|field| format!("{metric}.{field}")));
    }
    let counters =
        ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"];
    keys.extend(counters.map(str::to_owned));
    keys
}

/// Parses every line that is not blank.
pub(super) fn parse(text: &str) -> Result<Vec<Recording>, RecordingError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let object: Value =
                serde_json::from_str(line).map_err(|e| RecordingError::format(e.to_string()))?;
            scenario(&object)
        })
        .collect()
}

fn scenario(object: &Value) -> Result<Recording, RecordingError> {
    let root = Field::new(object, "scenario");
    let keys = keys();
    let mut now = vec![0i64; keys.len()];
    let mut names = Names::default();
    let mut steps = Vec::new();
    for item in root.get("ops")?.items()? {
        for change in item.get("d")?.items()? {
            let index = change.at(0)?.unsigned()? as usize;
            let Some(counter) = now.get_mut(index) else {
                return Err(RecordingError::format(format!("there is no counter {index}")));
            };
            *counter = change.at(1)?.signed()?;
        }
        steps.push(Step { operation: operation(item, &mut names)?, counters: now.clone() });
    }
    let segments = root.get("final_segments")?.items()?.map(final_segment).collect::<Result<_, _>>()?;
    Ok(Recording {
        name: root.get("name")?.text()?.to_owned(),
        settings: String::new(),
        limit_fraction: None,
        limit_bytes: None,
        total: root.get("device_total")?.unsigned()?,
        initial: vec![0; keys.len()],
        keys,
        steps,
        segment_events: None,
        final_segments: Some(segments),
        blocks: names.len(),
    })
}

/// Returns the handle of stream `number` of the scripts.
fn stream(number: u64) -> Stream {
    Stream(if number == 0 { 0 } else { 0x10_0000u64.saturating_add(number.saturating_mul(0x1000)) })
}

fn operation(item: Field<'_>, names: &mut Names) -> Result<Operation, RecordingError> {
    let line = item.get("op")?.text()?;
    let wrong = || RecordingError::format(format!("`{line}` is not an operation"));
    let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
    let words: Vec<&str> = rest.split_whitespace().collect();
    let word = |index: usize| words.get(index).copied().ok_or_else(wrong);
    let number = |index: usize| word(index)?.parse::<u64>().map_err(|_| wrong());
    let pool = || Ok::<_, RecordingError>(PoolId(number(0)?, number(1)?));
    Ok(match kind {
        "a" => {
            let refused = item.value.get("oom").and_then(Value::as_bool).unwrap_or(false);
            Operation::Allocate {
                id: names.number(word(0)?),
                bytes: number(1)?,
                stream: stream(number(2)?),
                address: if refused { None } else { Some(item.get("ptr")?.unsigned()?) },
                message: None,
            }
        }
        "f" => Operation::Free(names.number(word(0)?)),
        "r" => Operation::RecordStream(names.number(word(0)?), stream(number(1)?)),
        "done" => Operation::Finish(stream(number(0)?)),
        "empty" => Operation::EmptyCache,
        "emptypool" => Operation::FlushPool(pool()?),
        "rpeak" => Operation::ResetPeak,
        "racc" => Operation::ResetAccumulated,
        "conf" => Operation::Configure(rest.to_owned()),
        "frac" => Operation::MemoryFraction(word(0)?.parse().map_err(|_| wrong())?),
        "others" => Operation::Others(number(0)?),
        "pbegin" => {
            let only = if word(2)? == "-1" { None } else { Some(stream(number(2)?)) };
            Operation::BeginPool(pool()?, only)
        }
        "pend" => Operation::EndPool(pool()?),
        "prel" => Operation::ReleasePool(pool()?),
        "nosplit" => Operation::NoSplit(pool()?),
        _ => return Err(wrong()),
    })
}

fn final_segment(item: Field<'_>) -> Result<FinalSegment, RecordingError> {
    let mut blocks = Vec::new();
    for block in item.get("blocks")?.items()? {
        let state = block.at(2)?.text()?;
        let Some(state @ ('A' | 'P' | 'I')) = state.chars().next() else {
            return Err(RecordingError::format(format!("`{state}` is not a block state")));
        };
        blocks.push((block.at(0)?.unsigned()?, block.at(1)?.unsigned()?, state));
    }
    let pool = item.get("pool")?;
    Ok(FinalSegment {
        address: item.get("address")?.unsigned()?,
        total_size: item.get("total_size")?.unsigned()?,
        allocated_size: item.get("allocated_size")?.unsigned()?,
        active_size: item.get("active_size")?.unsigned()?,
        requested_size: item.get("requested_size")?.unsigned()?,
        stream: Stream(item.get("stream")?.unsigned()?),
        large: item.get("large")?.flag()?,
        expandable: item.get("expandable")?.flag()?,
        pool: Some(PoolId(pool.at(0)?.unsigned()?, pool.at(1)?.unsigned()?)),
        blocks,
    })
}
