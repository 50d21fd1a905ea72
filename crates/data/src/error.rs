//! Errors of data. Each message names the pattern, path or sizes.

use std::io;
use std::path::{Path, PathBuf};

use system::numbers::grouped;

/// Error of this crate. The message is one sentence, which includes the cause if there is one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages name their fields")]
pub enum Error {
    #[error("the corpus names no file")]
    NoPaths,
    #[error("'{pattern}' is not a glob: {reason}")]
    BadPattern { pattern: String, reason: String },
    #[error("the glob '{pattern}' matches no file in {}", shown(base))]
    NoMatch { pattern: String, base: PathBuf },
    #[error("there is no file {path}")]
    Missing { path: PathBuf },
    /// A directory, a pipe or a device instead of a regular file.
    #[error("{path} is {what}, not a regular file")]
    NotAFile {
        path: PathBuf,
        /// Kind of the file, with an article.
        what: &'static str,
    },
    /// The operating system refuses to open, examine or read a file.
    #[error("{path} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    /// A chat template that cannot be used.
    #[error("{path}: {reason}")]
    Template { path: PathBuf, reason: String },
    /// A file is of another kind than its reader expects.
    #[error("{path}: {reason}")]
    WrongFile { path: PathBuf, reason: String },
    #[error("{path}:{line}: {reason}")]
    BadConversation {
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        reason: String,
    },
    #[error("{path} has no conversation")]
    NoConversations { path: PathBuf },
    #[error("{path} has no pair of answers")]
    NoPairs { path: PathBuf },
    /// All lines of a file are invalid and were skipped.
    #[error(
        "{path}: nothing is left of it: {} of its lines are invalid, the first one is {first}",
        grouped(*count)
    )]
    NothingLeft {
        path: PathBuf,
        count: u64,
        /// Error of the first invalid line.
        first: String,
    },
    /// No conversation or pair of a split has an answer within the length of a sequence.
    #[error(
        "the training or the validation split has no answer within the {context} tokens of a sequence: it takes \
         one of each, and by default the last ones are the validation split"
    )]
    NoAnswers { context: usize },
    #[error("{path} was changed while it was read: it had {} bytes and has {}", grouped(*before), grouped(*now))]
    Changed { path: PathBuf, before: u64, now: u64 },
    /// A path or glob matches only empty files.
    #[error("'{pattern}' has no text")]
    Empty {
        /// The path or glob as configured.
        pattern: String,
    },
    /// A token file has an invalid header or length.
    #[error("{path} is no token shard that can be read: {reason}")]
    BadShard { path: PathBuf, reason: String },
    /// An invalid multiple-choice question.
    #[error("{path}, {unit} {number}: {reason}")]
    BadQuestion {
        path: PathBuf,
        /// Name of the unit that `number` counts: a line, or a question.
        unit: &'static str,
        /// Number of the line or question, from 1.
        number: usize,
        reason: String,
    },
    #[error(
        "{path}: token {token} at position {position} is not below the vocabulary of {vocabulary}{advice}"
    )]
    BeyondVocabulary {
        path: PathBuf,
        /// Number of tokens before it in the file.
        position: u64,
        token: u32,
        vocabulary: usize,
        /// Advice on how to give the model this token, if known.
        advice: &'static str,
    },
    #[error("documents begin with token {separator}, which is not below the vocabulary of {vocabulary}")]
    BadSeparator { separator: u32, vocabulary: usize },
    /// Tokens beyond the end of the corpus were requested.
    #[error("the corpus has {} tokens, not {count} from {} on", grouped(*tokens), grouped(*start))]
    BeyondCorpus { start: u64, count: usize, tokens: u64 },
    /// No shard is long enough for sequential order.
    #[error("in sequential order one micro-batch needs a file with {needed} tokens, and none has as many")]
    NoMicroBatch {
        /// Number of tokens needed: sequences · context + 1.
        needed: usize,
    },
    #[error("the corpus has more bytes than this machine can address")]
    TooLong,
    #[error(
        "the {split} split has {} of the corpus's {} tokens, and one sequence of context {context} needs {}",
        grouped(*tokens),
        grouped(*total),
        grouped(*needed)
    )]
    TooShort {
        /// The split: `training` or `validation`.
        split: &'static str,
        tokens: u64,
        total: u64,
        context: usize,
        needed: u64,
    },
    /// A size is zero, or a micro-batch would not fit in memory.
    #[error("a micro-batch of {rows} rows of {columns} values is invalid")]
    BadShape { rows: usize, columns: usize },
    #[error("the validation fraction {fraction} is not between 0 and 1, both excluded")]
    BadFraction { fraction: f64 },
    /// A mixture has no sources, or an invalid weight.
    #[error(
        "the weights {weights:?} make no mixture: each is finite, above 0, and at least 1/65536 of their sum"
    )]
    BadWeights { weights: Vec<f64> },
    /// The vocabulary has no tokens, or more than 2³².
    #[error("a vocabulary of {vocabulary} tokens is invalid")]
    BadVocabulary { vocabulary: usize },
    #[error("{path}: {reason}")]
    BadImages { path: PathBuf, reason: String },
    /// An image cannot be decoded, or the model does not have its class.
    #[error("{name} is no image that can be used: {reason}")]
    BadImage {
        /// The file, and the record in it if there are several.
        name: String,
        reason: String,
    },
    #[error("no image is left for {what}")]
    NoImages { what: &'static str },
    #[error("there is no image {index}: there are {count}")]
    NoSuchImage {
        index: u64,
        /// Number of images.
        count: u64,
    },
    #[error("the images have {folders} folders of classes, and the model has {classes} classes")]
    TooManyClasses { folders: usize, classes: usize },
    #[error(
        "images have 1 or 3 channels with a mean and a deviation for each, not {channels} with {mean} means \
         and {deviation} deviations"
    )]
    BadChannels { channels: usize, mean: usize, deviation: usize },
    /// There is no class, or there are more than 2³².
    #[error("{classes} classes of images are invalid")]
    BadClasses { classes: usize },
    #[error("there is no validation micro-batch {index}: there are {count}")]
    NoSuchValidation {
        index: u64,
        /// Number of micro-batches.
        count: u64,
    },
    #[error("the data has no pairs of answers")]
    NotOfPairs,
    #[error("the array holds {held} values, not {wanted}")]
    WrongType { held: &'static str, wanted: &'static str },
    #[error("{path} is no tokenizer.json: {reason}")]
    BadTokenizer { path: PathBuf, reason: String },
    /// A file beside a tokenizer contradicts its tokens.
    #[error("{path}: {reason}")]
    BadTokenizerFile { path: PathBuf, reason: String },
    #[error("the text cannot be tokenized: {reason}")]
    NotEncoded { reason: String },
}

/// Formats a directory for a message; an empty path is the current directory.
fn shown(directory: &Path) -> std::path::Display<'_> {
    if directory.as_os_str().is_empty() { Path::new(".").display() } else { directory.display() }
}
