//! Comparison of a replay with its recording.

use super::player::{Driver, Player};
use super::recording::{FinalSegment, Operation, Recording, Step};
use crate::allocator::{Allocation, BlockState};
use crate::error::AllocationError;
use crate::statistics::PoolKind;

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of operations replayed.
    pub operations: usize,
    /// Number of operations after which something differed, plus one if the final state differs.
    pub mismatches: usize,
    /// Description of the first difference; `None` if there is none.
    pub first: Option<String>,
}

impl Report {
    pub(super) fn add(&mut self, other: Report) {
        self.operations += other.operations;
        self.mismatches += other.mismatches;
        self.first = self.first.take().or(other.first);
    }

    fn count(&mut self, position: &str, differences: &[String]) {
        if !differences.is_empty() {
            self.mismatches += 1;
            self.first.get_or_insert_with(|| format!("{position}: {}", differences.join("; ")));
        }
    }
}

pub(super) fn check(recording: &Recording) -> Report {
    let mut report = Report::default();
    let mut player = match Player::new(recording) {
        Ok(player) => player,
        Err(error) => {
            report.count(&format!("{}: before the first operation", recording.name), &[error.to_string()]);
            return report;
        }
    };
    // Counters that were not 0 before the recording began stay ahead by their initial values.
    let mut ahead = recording.initial.clone();
    let mut before = &recording.initial;
    for (number, step) in recording.steps.iter().enumerate() {
        if step.operation == Operation::ResetAccumulated {
            clear_accumulated(&recording.keys, &mut ahead);
        }
        grant(&mut player, recording, before, step);
        let result = player.play(&step.operation);
        let mut differences = outcome(step, result);
        differences.extend(driver_differences(&mut player, recording, before, step));
        for (index, key) in recording.keys.iter().enumerate() {
            let ours = player.allocator.statistics().get(key).map(|value| value.wrapping_add(ahead[index]));
            if ours != Some(step.counters[index]) {
                let ours = ours.map_or("not counted".to_owned(), |value| value.to_string());
                differences.push(format!("{key} is {ours}, recorded {}", step.counters[index]));
            }
        }
        before = &step.counters;
        report.operations += 1;
        report.count(&format!("{}: operation {number} ({})", recording.name, step.operation), &differences);
    }
    report.count(&format!("{}: at the end", recording.name), &final_differences(&mut player, recording));
    report
}

/// Sets how many allocations of the recorded driver the next operation may make.
fn grant(player: &mut Player, recording: &Recording, before: &[i64], step: &Step) {
    if let Driver::Recorded(driver) = player.allocator.raw_mut()
        && let Some(index) = recording.keys.iter().position(|key| key == "num_device_alloc")
    {
        let granted = step.counters[index].wrapping_sub(before[index]);
        driver.grant(u64::try_from(granted).unwrap_or(0));
    }
}

fn clear_accumulated(keys: &[String], ahead: &mut [i64]) {
    for (key, value) in keys.iter().zip(ahead) {
        if key.starts_with("num_") || key.ends_with(".allocated") || key.ends_with(".freed") {
            *value = 0;
        }
    }
}

/// Compares the operation's result, an address or an error, with the recording.
fn outcome(step: &Step, result: Result<Option<Allocation>, AllocationError>) -> Vec<String> {
    let expected = match &step.operation {
        Operation::Allocate { address, message, .. } => Some((address, message)),
        _ => None,
    };
    match (expected, result) {
        (Some((Some(recorded), _)), Ok(Some(ours))) if ours.address == *recorded => vec![],
        (Some((Some(recorded), _)), Ok(Some(ours))) => {
            vec![format!("address is {:#x}, recorded {recorded:#x}", ours.address)]
        }
        (Some((None, _)), Ok(_)) => vec!["succeeded, recorded out of memory".to_owned()],
        (Some((None, message)), Err(AllocationError::OutOfMemory(ours))) => {
            let mut pieces =
                vec![format!("Tried to allocate {}. ", crate::Bytes(ours.segment)), ours.pytorch_usage()];
            pieces.extend(ours.limit.map(|limit| format!("{} allowed; ", crate::Bytes(limit))));
            pieces.push(format!("has a total capacity of {} ", crate::Bytes(ours.total)));
            let Some(message) = message else { return vec![] };
            pieces.retain(|piece| !message.contains(piece.as_str()));
            pieces.into_iter().map(|piece| format!("`{piece}` is not in the recorded error")).collect()
        }
        (_, Err(error)) => vec![error.to_string()],
        (_, Ok(_)) => vec![],
    }
}

/// Returns the driver calls that differ from the recording.
fn driver_differences(
    player: &mut Player,
    recording: &Recording,
    before: &[i64],
    step: &Step,
) -> Vec<String> {
    let Driver::Recorded(driver) = player.allocator.raw_mut() else { return vec![] };
    let mut differences = driver.take_problems();
    let refused = driver.take_refused();
    // A refusal shows in the recording only by what the allocator did next: a retry, an error or a release.
    let made_room = ["num_alloc_retries", "num_ooms", "num_device_free"].iter().any(|key| {
        recording.keys.iter().position(|k| k == key).is_some_and(|index| step.counters[index] > before[index])
    });
    if !made_room {
        differences.extend(refused);
    }
    differences
}

fn final_differences(player: &mut Player, recording: &Recording) -> Vec<String> {
    let mut differences = Vec::new();
    if let Driver::Recorded(driver) = player.allocator.raw_mut()
        && let [next, ..] = driver.left()
    {
        differences
            .push(format!("{} recorded segment events did not happen, first {next}", driver.left().len()));
    }
    let Some(expected) = &recording.final_segments else { return differences };
    let ours = final_segments(player);
    if expected.len() != ours.len() {
        differences.push(format!("{} segments, recorded {}", ours.len(), expected.len()));
    }
    for (mut ours, recorded) in ours.into_iter().zip(expected) {
        if recorded.pool.is_none() {
            ours.pool = None;
        }
        if ours != *recorded {
            differences.push(format!("a segment is {ours}, recorded {recorded}"));
            break;
        }
    }
    differences
}

fn final_segments(player: &mut Player) -> Vec<FinalSegment> {
    let snapshot = player.allocator.snapshot();
    let state = |state| match state {
        BlockState::ActiveAllocated => 'A',
        BlockState::ActivePendingFree => 'P',
        BlockState::Inactive => 'I',
    };
    snapshot
        .segments
        .iter()
        .map(|segment| FinalSegment {
            address: segment.address,
            total_size: segment.total_size,
            allocated_size: segment.allocated_size(),
            active_size: segment.active_size(),
            requested_size: segment.requested_size(),
            stream: segment.stream,
            large: segment.kind == PoolKind::Large,
            expandable: segment.expandable,
            pool: Some(segment.pool),
            blocks: segment.blocks.iter().map(|b| (b.size, b.requested, state(b.state))).collect(),
        })
        .collect()
}
