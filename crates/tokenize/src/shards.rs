//! Writes shards of tokens.

use crate::error::Result;
use crate::job::Format;
use data::{Encoding, HEADER_BYTES};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use system::file_error::FileContext;
use system::output::open_own;

/// How far the shards of a split have been written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reached {
    /// Index of the last shard.
    pub(crate) shard: u64,
    pub(crate) tokens: u64,
    pub(crate) total: u64,
}

#[derive(Debug)]
pub(crate) struct Shards {
    directory: PathBuf,
    name: &'static str,
    format: Format,
    encoding: Encoding,
    /// Maximum number of tokens per shard.
    limit: u64,
    reached: Reached,
    open: Option<BufWriter<File>>,
}

impl Shards {
    /// Continues the shards named `name` in `directory` from `reached`. Anything after it is truncated.
    pub(crate) fn resume(
        directory: &Path,
        name: &'static str,
        format: Format,
        encoding: Encoding,
        limit: u64,
        reached: Reached,
    ) -> Result<Self> {
        let limit = if format == Format::NanoGpt { u64::MAX } else { limit };
        let mut shards =
            Self { directory: directory.to_owned(), name, format, encoding, limit, reached, open: None };
        if reached.tokens > 0 {
            let path = shards.path(reached.shard);
            let file = open_own(&path, OpenOptions::new().write(true)).context(&path, "open it")?;
            let length = shards.offset() + reached.tokens * encoding.width() as u64;
            file.set_len(length).context(&path, "cut it")?;
            shards.begin(file, length)?;
        }
        let beyond = |shard: &u64| shards.path(*shard).exists();
        let first = if reached.tokens > 0 { reached.shard + 1 } else { reached.shard };
        for shard in (first..).take_while(beyond) {
            let path = shards.path(shard);
            fs::remove_file(&path).context(&path, "remove it")?;
        }
        Ok(shards)
    }

    pub(crate) fn reached(&self) -> Reached {
        self.reached
    }

    fn path(&self, shard: u64) -> PathBuf {
        self.directory.join(match self.format {
            Format::LlmC => format!("{}_{shard:06}.bin", self.name),
            Format::NanoGpt => format!("{}.bin", self.name),
        })
    }

    fn offset(&self) -> u64 {
        if self.encoding.header().is_some() { HEADER_BYTES as u64 } else { 0 }
    }

    fn begin(&mut self, file: File, position: u64) -> Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let path = self.path(self.reached.shard);
        file.seek(SeekFrom::Start(position)).context(&path, "write to it")?;
        self.open = Some(file);
        Ok(())
    }

    /// Appends tokens, starting new shards as they fill.
    pub(crate) fn append(&mut self, mut tokens: &[u32]) -> Result<()> {
        while !tokens.is_empty() {
            if self.reached.tokens == self.limit {
                self.end_shard()?;
            }
            if self.open.is_none() {
                self.create()?;
            }
            let room = usize::try_from(self.limit - self.reached.tokens).unwrap_or(usize::MAX);
            let (now, later) = tokens.split_at(room.min(tokens.len()));
            self.write(now)?;
            tokens = later;
        }
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        let path = self.path(self.reached.shard);
        let file = open_own(&path, OpenOptions::new().write(true).create(true).truncate(true));
        let file = file.context(&path, "create it")?;
        self.begin(file, self.offset())
    }

    fn write(&mut self, tokens: &[u32]) -> Result<()> {
        let bytes: Vec<u8> = match self.encoding.width() {
            // The encoding was chosen by the vocabulary, so tokens are below 65536.
            2 => tokens.iter().flat_map(|token| (*token as u16).to_le_bytes()).collect(),
            _ => tokens.iter().flat_map(|token| token.to_le_bytes()).collect(),
        };
        let path = self.path(self.reached.shard);
        if let Some(file) = &mut self.open {
            file.write_all(&bytes).context(&path, "write to it")?;
        }
        self.reached.tokens += tokens.len() as u64;
        self.reached.total += tokens.len() as u64;
        Ok(())
    }

    fn end_shard(&mut self) -> Result<()> {
        self.sync()?;
        self.open = None;
        self.reached = Reached { shard: self.reached.shard + 1, tokens: 0, total: self.reached.total };
        Ok(())
    }

    /// Syncs the appended tokens to the disk, and the header with their number.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let path = self.path(self.reached.shard);
        let header = self.encoding.header();
        let tokens = self.reached.tokens;
        let Some(file) = &mut self.open else { return Ok(()) };
        let mut write = || -> std::io::Result<()> {
            if let Some(header) = header {
                let mut words = [0; HEADER_BYTES / 4];
                words[..3].copy_from_slice(&[header.magic, header.version, tokens as u32]);
                file.rewind()?;
                file.write_all(&words.map(u32::to_le_bytes).concat())?;
            }
            file.seek(SeekFrom::End(0))?;
            file.get_ref().sync_data()
        };
        Ok(write().context(&path, "write to it")?)
    }
}
