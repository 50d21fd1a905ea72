//! Trains a byte-level byte-pair encoding.

use crate::error::{Error, Result};
use crate::input::Reader;
use crate::job::Job;
use crate::progress::BytesRead;
use crate::unit::Content;
use data::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;
use system::file_error::FileContext;
use system::output::{OutputFile, Replace};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as Trained};

/// The token written before each document.
const SEPARATOR: &str = "<|endoftext|>";
/// Minimum vocabulary size: one token per byte, and the separator.
const LEAST: usize = 257;
/// Number of pieces of text read ahead.
const AHEAD: usize = 64;

/// Trains a tokenizer of `vocabulary` tokens on the text of `files`. As in GPT-2, text is split by its
/// pattern, every byte is a token, and the most frequent pairs are merged; `<|endoftext|>` is added. Returns
/// its `tokenizer.json`, and its number of tokens, which is smaller if the text has fewer pairs.
///
/// # Errors
/// Errors of [`check_vocabulary`], or a file is unreadable or not text.
pub fn trained_tokenizer(files: Vec<PathBuf>, vocabulary: usize, text_key: &str) -> Result<(String, usize)> {
    check_vocabulary(vocabulary)?;
    // The tokenizer of bytes, so that the reader returns the text itself, in pieces that end at spaces.
    let mut job = Job::new(files, Tokenizer::Bytes, PathBuf::new())?;
    text_key.clone_into(&mut job.text_key);
    let mut tokenizer = Trained::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        .with_decoder(Some(ByteLevel::new(true, true, true)));
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(vocabulary)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from(SEPARATOR, true)])
        .build()
        .into();
    feed(&job, |texts| tokenizer.train(&mut trainer, texts).map(|_| ()))?;
    let json = tokenizer.to_string(true).map_err(|error| Error::Refused(error.to_string()))?;
    Ok((json, tokenizer.get_vocab_size(true)))
}

/// Trains a tokenizer with [`trained_tokenizer`] and writes it to `output`, a new file. Returns its number of
/// tokens.
///
/// # Errors
/// Errors of [`trained_tokenizer`], or the file exists or cannot be written.
pub fn train_tokenizer(
    files: Vec<PathBuf>,
    vocabulary: usize,
    text_key: &str,
    output: &Path,
) -> Result<usize> {
    check_vocabulary(vocabulary)?;
    let refused = |error| Error::Refused(format!("{}: {error}", output.display()));
    let file = OutputFile::new(output, Replace::Nothing).map_err(refused)?;
    let (json, tokens) = trained_tokenizer(files, vocabulary, text_key)?;
    file.write(json.as_bytes()).context(output, "write it")?;
    Ok(tokens)
}

/// Checks the vocabulary size of a tokenizer to be trained.
///
/// # Errors
/// The size is less than 257.
pub fn check_vocabulary(vocabulary: usize) -> Result<()> {
    match vocabulary < LEAST {
        true => {
            let text = format!("a vocabulary of {vocabulary} is less than 256 bytes and {SEPARATOR}");
            Err(Error::Refused(text))
        }
        false => Ok(()),
    }
}

/// Passes the texts of `job` to `train` as they are read.
fn feed<E: ToString>(
    job: &Job,
    train: impl FnOnce(Box<dyn Iterator<Item = String> + Send>) -> std::result::Result<(), E>,
) -> Result<()> {
    let (sender, receiver) = sync_channel::<String>(AHEAD);
    // An iterator cannot return an error, so it is stored here.
    let failed = Mutex::new(None);
    let failed = &failed;
    let keep = move |error| {
        if let Ok(mut failed) = failed.lock() {
            *failed = Some(error);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let read = BytesRead::default();
            let read = Reader::new(job, &read).run(&mut |unit| {
                let text = match unit.content {
                    Content::JsonLine(line) => crate::encode::text_of(&line, &job.text_key),
                    Content::Text(bytes) => String::from_utf8(bytes).map_err(|error| error.to_string()),
                    Content::Invalid(reason) => Err(reason),
                };
                match text {
                    Ok(text) => sender.send(text).is_ok(),
                    Err(reason) => {
                        keep(Error::Invalid { path: unit.path.to_path_buf(), line: unit.line, reason });
                        false
                    }
                }
            });
            if let Err(error) = read {
                keep(error);
            }
        });
        train(Box::new(receiver.into_iter())).map_err(|error| Error::Refused(error.to_string()))
    })?;
    match failed.lock().ok().and_then(|mut failed| failed.take()) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
