//! The failure report of a run: which rank failed, where and why, and the last status of every rank.

use std::any::Any;
use std::fmt::{Display, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use device::{Device, Kind};
use telemetry::host_name;
use telemetry::memory_views::{Summarized, memory_summary, snapshot_pickle};
use telemetry::run_files::atomic_write;
use telemetry::step_trace::{RunPart, StepTrace};
use telemetry::units::bytes;

use telemetry::status::{Record, State};

/// File name of the report in `logs`. The rank that created the file prints it.
pub const REPORT: &str = "failure.txt";

/// Maximum bytes read of a report.
const MOST_BYTES: u64 = 16 << 20;

/// A rank that failed.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The rank.
    pub rank: usize,
    /// The rank's host, used if its status file is missing.
    pub host: String,
    /// The error message.
    pub reason: String,
}

impl Lost {
    /// Returns the failure of a rank in this process.
    pub fn here(rank: usize, reason: String) -> Self {
        Lost { rank, host: host_name(), reason }
    }
}

/// Removes failure reports that an earlier attempt left in `logs`.
pub fn forget(logs: &Path) {
    for entry in std::fs::read_dir(logs).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == REPORT || name.ends_with(".status") {
            // A file that cannot be removed cannot be written either, which is reported then.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Writes the report and returns it; `None` if another rank has already written one. Its first line is one
/// sentence.
pub fn report(logs: &Path, ranks: usize, lost: &Lost) -> Option<String> {
    let path = logs.join(REPORT);
    // `create_new` never follows a link.
    let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return None,
        // A report that cannot be written is printed by every rank.
        Err(_) => None,
    };
    let text = describe(logs, ranks, lost);
    // An error of the write is ignored: the report is printed too.
    let _ = file.map(|mut file: File| file.write_all(text.as_bytes()));
    Some(text)
}

/// Returns the first line of the report; `None` if there is no report.
pub(crate) fn reported(logs: &Path) -> Option<String> {
    let text = system::input::read_text(&logs.join(REPORT), MOST_BYTES).ok()?;
    text.lines().next().map(str::to_owned)
}

fn describe(logs: &Path, ranks: usize, Lost { rank, host, reason }: &Lost) -> String {
    let records: Vec<_> = (0..ranks).map(|rank| Record::read(logs, rank)).collect();
    let own = records.get(*rank).and_then(Option::as_ref);
    let host = own.map_or(host, |record| &record.host);
    let stage = own.map_or("", |record| &record.stage);
    let mut text = format!("{} on {host} failed ", named(*rank, stage));
    text += &match own {
        None => "before it began".to_owned(),
        Some(Record { step: 0, .. }) => "before its first step".to_owned(),
        Some(record) => format!("in step {}", record.step),
    };
    if let Some(record) = own.filter(|record| !record.call.is_empty()) {
        text += &format!(", last call {}", record.call);
    }
    text += &format!(": {reason}\nLast seen of every rank:\n");
    for (rank, record) in records.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = match record {
            None => writeln!(text, "  rank {rank}: nothing"),
            Some(record) => writeln!(text, "  {}", line(record)),
        };
    }
    text.truncate(text.trim_end().len());
    text
}

/// Formats a rank, with its stages if there are several.
fn named(rank: usize, stage: &str) -> String {
    if stage.is_empty() { format!("rank {rank}") } else { format!("rank {rank} ({stage})") }
}

fn line(record: &Record) -> String {
    let Record { rank, stage, host, pid, state, step, call, memory, .. } = record;
    let [allocated, reserved, peak, peak_reserved] = memory;
    let rank = named(*rank, stage);
    let call = if call.is_empty() { "none" } else { call };
    let seen = match state {
        State::Running => format!("seen {:.1} s ago", record.age().as_secs_f64()),
        state => state.name().to_owned(),
    };
    format!(
        "{rank}: {seen}, host {host}, process {pid}, step {step}, last call {call}, \
         allocated {}, reserved {}, \
         peak allocated {}, peak reserved {}",
        bytes(*allocated),
        bytes(*reserved),
        bytes(*peak),
        bytes(*peak_reserved)
    )
}

/// Writes the allocator's table and snapshot, in PyTorch's formats, for a rank that ran out of memory.
/// Returns a text with the remaining allocations and the two paths, or why a file could not be written.
/// `before` is put in front, because it explains the failure.
pub fn memory_of(device: &Device, rank: usize, logs: &Path, before: &[String]) -> String {
    let (table, snapshot) = device.with_allocator(|allocator| {
        let name = summarized(device, rank);
        (memory_summary(allocator.statistics(), name, false), allocator.snapshot())
    });
    let file = |ending: &str| logs.join(format!("rank-{rank}.{ending}"));
    let written = atomic_write(&file("oom.txt"), table.as_bytes())
        .and_then(|()| atomic_write(&file("oom.pickle"), &snapshot_pickle(&snapshot)));
    let left = match written {
        Ok(()) => format!("its memory is in {} and .pickle", file("oom.txt").display()),
        Err(error) => error.to_string(),
    };
    let trace = StepTrace::of_now(&snapshot, RunPart::Step, device.step().into());
    let used = trace.live_after(usize::MAX).in_words();
    let before: String = before.iter().map(|finding| format!("; before that, {finding}")).collect();
    let used = if used.is_empty() { String::new() } else { format!("outside the step it holds {used}; ") };
    format!("{used}{left}{before}")
}

/// Returns the name of the rank's device in the allocator's table.
pub(crate) fn summarized(device: &Device, rank: usize) -> Summarized {
    let number = u32::try_from(rank).unwrap_or(u32::MAX);
    if device.description().kind == Kind::Cuda { Summarized::Gpu(number) } else { Summarized::Host(number) }
}

/// Returns the message of a panic.
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.as_deref().unwrap_or("no message"))
}

/// Returns an error as one line.
pub fn sentence(error: &impl Display) -> String {
    one_line(&error.to_string())
}

/// Returns a text as one line.
pub fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use memory::Statistics;

    use super::*;
    use telemetry::status::Status;

    #[test]
    fn only_the_first_failed_rank_writes_the_report() {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path().join("logs");
        let status = Status::create(&logs, 1, "stage 1 of 3");
        status.step(16, Statistics::default);
        // The last state is written before the thread that writes ends.
        drop(status);
        let lost = Lost { rank: 1, host: "box".to_owned(), reason: "killed".to_owned() };
        let text = report(&logs, 3, &lost).unwrap();
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("rank 1 (stage 1 of 3) on "), "{text}");
        assert!(first.ends_with("failed in step 17: killed"), "{text}");
        assert!(
            text.contains("rank 0: nothing") && text.contains("rank 1 (stage 1 of 3): seen 0."),
            "{text}"
        );
        assert_eq!(std::fs::read_to_string(logs.join(REPORT)).unwrap(), text);
        assert_eq!(report(&logs, 3, &lost), None);
        forget(&logs);
        let early = report(&logs, 3, &Lost { rank: 2, ..lost }).unwrap();
        assert!(early.starts_with("rank 2 on box failed before it began: killed\n"), "{early}");
    }
}
