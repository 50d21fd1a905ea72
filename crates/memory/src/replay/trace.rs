//! The format of traces: `[kind, …, counters]` per operation.

use serde_json::Value;

use super::fields::{Field, Names};
use super::recording::{FinalSegment, Operation, Recording, RecordingError, SegmentEvent, Step};
use crate::raw::Stream;

/// Reads a trace from its JSON object.
pub(super) fn parse(object: &Value) -> Result<Recording, RecordingError> {
    let root = Field::new(object, "recording");
    let optional = |key: &str| object.get(key).filter(|value| !value.is_null());
    let keys: Vec<String> =
        root.get("stat_names")?.items()?.map(|f| f.text().map(str::to_owned)).collect::<Result<_, _>>()?;
    let initial = counters(root.get("initial")?, keys.len())?;
    let mut names = Names::default();
    let mut steps = Vec::new();
    for item in root.get("ops")?.items()? {
        steps.push(step(item, keys.len(), &mut names)?);
    }
    let events = root.get("segment_events")?.items()?.map(segment_event).collect::<Result<_, _>>()?;
    let segments = optional("final_segments")
        .map(|value| {
            Field::new(value, "final_segments").items()?.map(final_segment).collect::<Result<_, _>>()
        })
        .transpose()?;
    Ok(Recording {
        name: optional("case").and_then(Value::as_str).unwrap_or_default().to_owned(),
        settings: root.get("alloc_conf")?.text()?.to_owned(),
        limit_fraction: optional("limit_fraction").and_then(Value::as_f64),
        limit_bytes: optional("limit_bytes").and_then(Value::as_u64),
        total: root.get("total_memory")?.unsigned()?,
        keys,
        initial,
        steps,
        segment_events: Some(events),
        final_segments: segments,
        blocks: names.len(),
    })
}

fn counters(field: Field<'_>, count: usize) -> Result<Vec<i64>, RecordingError> {
    let values: Vec<i64> = field.items()?.map(|f| f.signed()).collect::<Result<_, _>>()?;
    if values.len() == count {
        Ok(values)
    } else {
        Err(RecordingError::format(format!("{} counters for {count} keys", values.len())))
    }
}

fn step(item: Field<'_>, count: usize, names: &mut Names) -> Result<Step, RecordingError> {
    let kind = item.at(0)?.text()?;
    let mut id = |field: Field<'_>| -> Result<u32, RecordingError> {
        let name = field.value;
        if name.is_number() || name.is_string() {
            Ok(names.number(&name.to_string()))
        } else {
            Err(RecordingError::format("a block's id is neither a number nor a string"))
        }
    };
    let (operation, last) = match kind {
        "alloc" | "oom" => {
            let refused = kind == "oom";
            let operation = Operation::Allocate {
                id: id(item.at(1)?)?,
                bytes: item.at(2)?.unsigned()?,
                stream: stream(item.at(3)?)?,
                address: if refused { None } else { Some(item.at(4)?.unsigned()?) },
                message: if refused { Some(item.at(4)?.text()?.to_owned()) } else { None },
            };
            (operation, 5)
        }
        "free" => (Operation::Free(id(item.at(1)?)?), 2),
        "record_stream" => (Operation::RecordStream(id(item.at(1)?)?, stream(item.at(2)?)?), 3),
        "empty_cache" => (Operation::EmptyCache, 1),
        "reset_peak" => (Operation::ResetPeak, 1),
        "reset_accumulated" => (Operation::ResetAccumulated, 1),
        other => return Err(RecordingError::format(format!("`{other}` is not an operation"))),
    };
    Ok(Step { operation, counters: counters(item.at(last)?, count)? })
}

/// Reads a stream number of a trace: 0 is the default stream, n is the nth of PyTorch's own streams.
///
/// PyTorch identifies the nth stream by 32·(n − 1) + 3, which determines the order in which it visits several
/// streams. It has 32 streams; a larger number is a handle and is kept.
fn stream(field: Field<'_>) -> Result<Stream, RecordingError> {
    Ok(Stream(match field.unsigned()? {
        number @ 1..=32 => 32 * (number - 1) + 3,
        other => other,
    }))
}

fn segment_event(item: Field<'_>) -> Result<SegmentEvent, RecordingError> {
    let action = item.at(0)?.text()?.to_owned();
    if !matches!(action.as_str(), "segment_alloc" | "segment_free" | "segment_map" | "segment_unmap") {
        return Err(RecordingError::format(format!("`{action}` is not a segment event")));
    }
    Ok(SegmentEvent {
        action,
        address: item.at(1)?.unsigned()?,
        bytes: item.at(2)?.unsigned()?,
        stream: stream(item.at(3)?)?,
    })
}

fn final_segment(item: Field<'_>) -> Result<FinalSegment, RecordingError> {
    let mut blocks = Vec::new();
    for block in item.get("blocks")?.items()? {
        let state = match block.at(3)?.text()? {
            "active_allocated" => 'A',
            "active_pending_free" => 'P',
            "inactive" => 'I',
            other => return Err(RecordingError::format(format!("`{other}` is not a block state"))),
        };
        blocks.push((block.at(1)?.unsigned()?, block.at(2)?.unsigned()?, state));
    }
    Ok(FinalSegment {
        address: item.get("address")?.unsigned()?,
        total_size: item.get("total_size")?.unsigned()?,
        allocated_size: item.get("allocated_size")?.unsigned()?,
        active_size: item.get("active_size")?.unsigned()?,
        requested_size: item.get("requested_size")?.unsigned()?,
        stream: stream(item.get("stream")?)?,
        large: item.get("segment_type")?.text()? == "large",
        expandable: item.get("is_expandable")?.flag()?,
        pool: None,
        blocks,
    })
}
