//! Reads input files as units: text, JSON lines and Parquet, plain or compressed.

use crate::error::{Error, Result};
use crate::job::{HeldOut, Job};
use crate::kind::{Kind, extension};
#[cfg(feature = "parquet")]
use crate::parquet_file;
use crate::progress::BytesRead;
use crate::text::{self, Division, TextPiece};
use crate::unit::{Content, Unit};
use data::{FileContents, TextError, Tokenizer};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use system::file_error::{FileContext, FileError};

/// Buffer size for reading files, in bytes.
const BUFFER: usize = 1 << 18;

/// Returns the error for a file whose format needs a feature that this build lacks.
fn left_out(path: &Path) -> Error {
    Error::Invalid { path: path.to_path_buf(), line: None, reason: data::LEFT_OUT.to_owned() }
}

/// Warns if a file contains JSON but its name makes it read as text.
fn warn_of_json(path: &Path) {
    if FileContents::from_file(path).is_ok_and(|contents| contents != FileContents::Text) {
        tracing::warn!(
            "{}: it is JSON, whose keys and braces are tokens too, because its name says text: with the name \
             .jsonl the texts of a key are tokenized",
            path.display()
        );
    }
}

/// Reads the units of a job's files, in order.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    job: &'a Job,
    read: &'a BytesRead,
    /// Number of JSON lines and Parquet documents read so far.
    documents: u64,
}

/// Callback that receives units until it returns false.
pub(crate) type Take<'a> = &'a mut dyn FnMut(Unit) -> bool;

impl<'a> Reader<'a> {
    pub(crate) fn new(job: &'a Job, read: &'a BytesRead) -> Self {
        Self { job, read, documents: 0 }
    }

    /// Passes every unit to `take`.
    pub(crate) fn run(mut self, take: Take<'_>) -> Result<()> {
        self.check_readers()?;
        for path in &self.job.files {
            let kind = if self.job.is_plain_text { Kind::Text } else { Kind::from_name(path) };
            if kind == Kind::Text && !self.job.is_plain_text {
                warn_of_json(path);
            }
            let goes_on = match kind {
                Kind::Text => self.text(path, take)?,
                Kind::JsonLines => self.json_lines(path, take)?,
                Kind::Parquet => self.parquet(path, take)?,
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Returns an error, before anything is read, if a file needs a feature that this build lacks.
    fn check_readers(&self) -> Result<()> {
        let needs_feature = |path: &&PathBuf| matches!(extension(path), "parquet" | "zst");
        match self.job.files.iter().find(needs_feature) {
            Some(path) if !cfg!(feature = "parquet") && !self.job.is_plain_text => Err(left_out(path)),
            _ => Ok(()),
        }
    }

    fn text(&self, path: &Path, take: Take<'_>) -> Result<bool> {
        let job = self.job;
        let shared: Arc<Path> = path.into();
        let division = Division {
            document_end: job.document_end.as_ref().map(String::as_bytes),
            at_spaces: job.tokenizer.cuts_at_spaces(),
        };
        let border = match job.held_out {
            HeldOut::Fraction(fraction) => {
                let in_bytes = job.tokenizer == Tokenizer::Bytes;
                let uncounted = BytesRead::default();
                text::split_at(path, fraction, in_bytes, &|| self.open(path, &uncounted))?
            }
            _ => u64::MAX,
        };
        let mut input = self.open(path, self.read)?;
        for (length, is_validation) in [(border, false), (u64::MAX, true)] {
            let mut unit = |TextPiece { bytes, starts_document }| {
                let content = Content::Text(bytes);
                let path = Arc::clone(&shared);
                take(Unit { content, path, line: None, starts_document, is_validation })
            };
            if !text::divide(path, &mut input, length, division, &mut unit)? {
                return Ok(false);
            }
            if border == u64::MAX {
                break;
            }
        }
        Ok(true)
    }

    fn json_lines(&mut self, path: &Path, take: Take<'_>) -> Result<bool> {
        let shared: Arc<Path> = path.into();
        let mut input = BufReader::with_capacity(BUFFER, self.open(path, self.read)?);
        let read = data::each_object(&mut input, |line, text| {
            match take(self.document(Content::JsonLine(text.to_vec()), &shared, line)) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        read.map(|flow| flow.is_continue()).map_err(|error| match error {
            TextError::Unreadable(source) => {
                FileError { path: path.to_path_buf(), action: "read it", source }.into()
            }
            TextError::Invalid { line, reason } => {
                Error::Invalid { path: path.to_path_buf(), line: Some(line), reason: reason.to_owned() }
            }
        })
    }

    /// Opens a file, decompressing it as its extension says. `read` counts the bytes of the file itself.
    fn open<'r>(&self, path: &Path, read: &'r BytesRead) -> Result<Box<dyn Read + 'r>> {
        let file = system::input::open(path).context(path, "open it")?;
        let mut buffered = BufReader::with_capacity(BUFFER, Counted { file, read });
        let is_plain = !self.job.is_plain_text && !matches!(extension(path), "gz" | "zst");
        let first = buffered.fill_buf().context(path, "read it")?;
        if let Some(kind) = data::packing(first).filter(|_| is_plain) {
            let advice = match kind {
                "UTF-16" => "convert it to UTF-8",
                _ => "its name does not say so, as .gz, .zst and .parquet do",
            };
            let reason = format!("it is {kind}: {advice}");
            return Err(Error::Invalid { path: path.to_path_buf(), line: None, reason });
        }
        Ok(match extension(path) {
            _ if self.job.is_plain_text => Box::new(buffered),
            "gz" => Box::new(MultiGzDecoder::new(buffered)),
            #[cfg(feature = "parquet")]
            "zst" => {
                let decoder = zstd::stream::read::Decoder::with_buffer(buffered);
                Box::new(decoder.context(path, "decompress it")?)
            }
            _ => Box::new(buffered),
        })
    }

    #[cfg(not(feature = "parquet"))]
    fn parquet(&mut self, path: &Path, _take: Take<'_>) -> Result<bool> {
        Err(left_out(path))
    }

    #[cfg(feature = "parquet")]
    fn parquet(&mut self, path: &Path, take: Take<'_>) -> Result<bool> {
        if extension(path) != "parquet" {
            let reason = "a Parquet file is compressed inside, not as a whole".to_owned();
            return Err(Error::Invalid { path: path.to_path_buf(), line: None, reason });
        }
        let shared: Arc<Path> = path.into();
        let key = &self.job.text_key;
        let mut row = 0;
        parquet_file::read(path, key, self.read, &mut |content| {
            row += 1;
            take(self.document(content, &shared, row))
        })
    }

    /// Makes a unit of a whole document, and draws at random whether it is held out for validation.
    fn document(&mut self, content: Content, path: &Arc<Path>, line: u64) -> Unit {
        let number = self.documents;
        self.documents += 1;
        let is_validation = match self.job.held_out {
            HeldOut::Fraction(fraction) => {
                let key = philox::key_of_name(0, "tokenize.validation");
                let word = philox::philox4x32(key, [number as u32, (number >> 32) as u32, 0, 0])[0];
                f64::from(philox::uniform(word)) < fraction
            }
            _ => false,
        };
        Unit { content, path: Arc::clone(path), line: Some(line), starts_document: true, is_validation }
    }
}

/// A file that counts its bytes as they are read.
#[derive(Debug)]
struct Counted<'a> {
    file: File,
    read: &'a BytesRead,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(out)?;
        self.read.add(read as u64);
        Ok(read)
    }
}
