//! Runs a tokenizing job.

use crate::encode::encode_all;
use crate::error::{Error, Result};
use crate::input::Reader;
use crate::job::Job;
use crate::output::{Counts, Output, OutputState};
use crate::progress::{BytesRead, Progress};
use crate::unit::Unit;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Bytes of text in a batch, which is encoded together on all cores.
const BATCH: usize = 8 << 20;
/// Number of batches read ahead.
const AHEAD: usize = 2;
/// Interval between two records of the progress.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Tokenizes the files of `job` into its output directory, or continues the work of a killed process. The
/// directory appears once it is complete. If it already exists and belongs to the same job, nothing is done.
///
/// # Errors
/// Options contradict each other, the output directory has other contents, files are unreadable or contain
/// invalid input, or there are no tokens.
pub fn tokenize(job: &Job) -> Result<Counts> {
    job.check()?;
    let mut output = match Output::open(job)? {
        OutputState::Whole(counts) => return Ok(counts),
        OutputState::Partial(output) => output,
    };
    let total = job.files.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum();
    let progress = Progress::new(total, job.show_progress, &job.output);
    let read = BytesRead::default();
    let skip = output.units();
    let (sender, receiver) = sync_channel(AHEAD);
    std::thread::scope(|scope| {
        let reader = Reader::new(job, &read);
        let reading = scope.spawn(move || send(reader, skip, &sender));
        let written = receive(job, &receiver, &mut output, &|tokens| progress.update(&read, tokens));
        // The reader ends when the receiver is dropped.
        drop(receiver);
        let read = reading.join();
        written?;
        read.unwrap_or_else(|_| Err(Error::Refused("the reader of the files panicked".to_owned())))
    })?;
    progress.finish();
    output.publish(job)
}

/// Sends the units of the files in batches, without the first `skip` units.
fn send(reader: Reader<'_>, skip: u64, batches: &SyncSender<Vec<Unit>>) -> Result<()> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    let mut number = 0;
    reader.run(&mut |unit| {
        number += 1;
        if number <= skip {
            return true;
        }
        bytes += unit.content.bytes();
        batch.push(unit);
        if bytes < BATCH {
            return true;
        }
        bytes = 0;
        batches.send(std::mem::take(&mut batch)).is_ok()
    })?;
    // If the receiver is gone, the receiving thread has the error.
    let _ = batches.send(batch);
    Ok(())
}

/// Encodes and writes batches as they arrive.
fn receive(
    job: &Job,
    batches: &Receiver<Vec<Unit>>,
    output: &mut Output,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let mut saved = Instant::now();
    let before = output.tokens();
    for units in batches {
        for (unit, encoded) in units.iter().zip(encode_all(job, &units)?) {
            match encoded.is_skipped {
                true => output.skip(),
                false => {
                    let validates = unit.is_validation;
                    let begins = unit.starts_document;
                    output.append(&encoded.tokens, validates, encoded.bytes, begins)?;
                }
            }
        }
        progress(output.tokens() - before);
        if saved.elapsed() >= SAVE_EVERY {
            output.save()?;
            saved = Instant::now();
        }
    }
    Ok(())
}
