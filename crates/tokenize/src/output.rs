//! The output directory of a job, complete or unfinished.

use crate::error::{Error, Result};
use crate::job::{HeldOut, Job};
use crate::shards::{Reached, Shards};
use data::{Corpus, Tokenizer};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use system::file_error::FileContext;
use system::output::sync_parent;

/// File name of the job's record in its output.
const RECORD: &str = "tokens.json";
const TRAINING: &str = "train_*.bin";
/// File name of the tokenizer's copy in the output.
const TOKENIZER: &str = "tokenizer.json";

/// Numbers of tokens, documents and bytes of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of training tokens.
    pub training_tokens: u64,
    /// Number of validation tokens.
    pub validation_tokens: u64,
    /// Number of documents.
    pub documents: u64,
    /// Bytes of input text.
    pub bytes: u64,
    /// Number of invalid documents and pieces that were skipped.
    pub skipped: u64,
}

/// The recorded progress of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The job's [`Job::fingerprint`].
    job: String,
    tokenizer: String,
    /// The token written before each document.
    #[serde(default)]
    separator: Option<u32>,
    /// Number of units written to the shards.
    units: u64,
    training: Reached,
    validation: Reached,
    counts: Counts,
    /// SHA-256 of the training tokens, as [`Corpus::fingerprint`] returns it. Absent while the job runs,
    /// without [`Job::has_hash`], and in the output of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    training_sha256: Option<String>,
}

/// A job's unfinished output in the directory `OUTPUT.partial`, to which one process at a time writes.
#[derive(Debug)]
pub(crate) struct Output {
    directory: PathBuf,
    _lock: File,
    record: Record,
    /// Number of tokens at the start of the corpus that are held out.
    first: u64,
    training: Shards,
    validation: Shards,
}

#[derive(Debug)]
pub(crate) enum OutputState {
    /// The job's output is already complete.
    Whole(Counts),
    /// The job must be started or continued.
    Partial(Box<Output>),
}

impl Output {
    /// Opens the output of `job`. Waits if another process runs the same job.
    ///
    /// # Errors
    /// The directory has other contents.
    pub(crate) fn open(job: &Job) -> Result<OutputState> {
        let fingerprint = job.fingerprint()?;
        if let Some(counts) = whole(job, &fingerprint)? {
            return Ok(OutputState::Whole(counts));
        }
        let directory = partial(&job.output);
        fs::create_dir_all(&directory).context(&directory, "make the directory")?;
        let lock = lock(&directory)?;
        // Another process may have finished meanwhile.
        if let Some(counts) = whole(job, &fingerprint)? {
            let _ = fs::remove_dir_all(&directory);
            return Ok(OutputState::Whole(counts));
        }
        let record = match read_record(&directory)? {
            Some(record) if record.job == fingerprint => record,
            _ => {
                let tokenizer = job.tokenizer.identity();
                let separator = job.separator;
                Record { job: fingerprint, tokenizer, separator, ..start(job) }
            }
        };
        let shards = |name, limit, reached| {
            Shards::resume(&directory, name, job.format, job.encoding(), limit, reached)
        };
        let first = match job.held_out {
            HeldOut::Tokens(tokens) => tokens,
            HeldOut::Shard => job.shard_tokens,
            HeldOut::Nothing | HeldOut::Fraction(_) => 0,
        };
        let training = shards("train", job.shard_tokens, record.training)?;
        let validation = shards("val", job.shard_tokens.max(first), record.validation)?;
        let output = Self { directory, _lock: lock, record, first, training, validation };
        Ok(OutputState::Partial(Box::new(output)))
    }

    /// Returns the number of units already written to the shards.
    pub(crate) fn units(&self) -> u64 {
        self.record.units
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.training.reached().total + self.validation.reached().total
    }

    /// Appends the tokens of a unit with `bytes` bytes of text. Adds one document to the counts if
    /// `starts_document`.
    pub(crate) fn append(
        &mut self,
        tokens: &[u32],
        is_validation: bool,
        bytes: u64,
        starts_document: bool,
    ) -> Result<()> {
        let room = self.first.saturating_sub(self.validation.reached().total);
        let held_out = if is_validation { u64::MAX } else { room };
        let split = tokens.len().min(usize::try_from(held_out).unwrap_or(usize::MAX));
        let (validation, training) = tokens.split_at(split);
        self.validation.append(validation)?;
        self.training.append(training)?;
        self.record.units += 1;
        self.record.counts.documents += u64::from(starts_document);
        self.record.counts.bytes += bytes;
        Ok(())
    }

    /// Adds one skipped unit to the counts.
    pub(crate) fn skip(&mut self) {
        self.record.units += 1;
        self.record.counts.skipped += 1;
    }

    /// Records the progress, from which a killed job can continue.
    pub(crate) fn save(&mut self) -> Result<()> {
        self.training.sync()?;
        self.validation.sync()?;
        self.record.training = self.training.reached();
        self.record.validation = self.validation.reached();
        self.record.counts.training_tokens = self.record.training.total;
        self.record.counts.validation_tokens = self.record.validation.total;
        let text = serde_json::to_string_pretty(&self.record).unwrap_or_default();
        write_atomically(&self.directory.join(RECORD), text.as_bytes())
    }

    /// Renames the directory to its final name.
    pub(crate) fn publish(mut self, job: &Job) -> Result<Counts> {
        self.save()?;
        let counts = self.record.counts;
        if counts.training_tokens == 0 {
            return Err(Error::Refused("the files hold no token to train on".to_owned()));
        }
        if job.held_out != HeldOut::Nothing && counts.validation_tokens == 0 {
            return Err(Error::Refused("the files hold no token to validate on".to_owned()));
        }
        if job.has_hash {
            let corpus = Corpus::open_shards(&self.directory, &[TRAINING.to_owned()])?;
            self.record.training_sha256 = Some(corpus.fingerprint()?);
            self.save()?;
        }
        if let Tokenizer::File(file) = &job.tokenizer {
            write_atomically(&self.directory.join(TOKENIZER), file.json())?;
            for (name, contents) in file.beside() {
                write_atomically(&self.directory.join(name), contents)?;
            }
        }
        fs::rename(&self.directory, &job.output).context(&job.output, "put it in place")?;
        sync_parent(&job.output).context(&job.output, "bring it to the disk")?;
        Ok(counts)
    }
}

/// Returns the record of a job that has not begun. If the first shard is held out, training shards are
/// numbered from 1, as in llm.c's shards of FineWeb.
fn start(job: &Job) -> Record {
    let shard = u64::from(job.held_out == HeldOut::Shard);
    Record { training: Reached { shard, ..Reached::default() }, ..Record::default() }
}

fn partial(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Returns the counts of a complete output if it belongs to this job; `None` if there is none.
///
/// # Errors
/// The directory has other contents.
fn whole(job: &Job, fingerprint: &str) -> Result<Option<Counts>> {
    let is_empty = match fs::read_dir(&job.output) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.context(&job.output, "read it")?.next().is_none(),
    };
    match read_record(&job.output)? {
        Some(record) if record.job == fingerprint => Ok(Some(record.counts)),
        _ if is_empty => Ok(None),
        _ => {
            let text = format!("{} exists and holds something else", job.output.display());
            Err(Error::Refused(text))
        }
    }
}

/// Opens the training tokens of an output, and compares them with the hash in its record. Also returns
/// whether the record has a hash.
///
/// # Errors
/// Shards are missing or damaged.
pub fn open_verified(directory: &Path) -> Result<(Corpus, bool)> {
    let corpus = Corpus::open_shards(directory, &[TRAINING.to_owned()])?;
    let Some(written) = read_record(directory)?.and_then(|record| record.training_sha256) else {
        return Ok((corpus, false));
    };
    if corpus.fingerprint()? != written {
        let text = format!(
            "{}: its tokens are damaged: their SHA-256 is not the one that was written; delete it, and the \
             text is tokenized again",
            directory.display()
        );
        return Err(Error::Refused(text));
    }
    Ok((corpus, true))
}

/// Maximum size of a record in bytes.
const MOST_RECORD: u64 = 64 << 20;

/// Reads the record in `directory`; `None` if it is missing or cannot be parsed.
fn read_record(directory: &Path) -> Result<Option<Record>> {
    let path = directory.join(RECORD);
    match system::input::read(&path, MOST_RECORD) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => Ok(serde_json::from_slice(&read.context(&path, "read it")?).ok()),
    }
}

fn lock(directory: &Path) -> Result<File> {
    let file = File::open(directory).context(directory, "open it")?;
    // Another process with the same job waits here, and then finds it done. Some network file systems cannot
    // lock directories; the job continues without a lock.
    let _ = file.lock();
    Ok(file)
}

fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(system::output::write_own(path, bytes).context(path, "write it")?)
}
