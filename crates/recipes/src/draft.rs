//! A configuration that has not been fitted to a device yet.

use std::path::PathBuf;

use crate::document::Document;
use crate::paths::Directories;

/// A configuration for a job, and the reasons for its settings.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The configuration.
    pub document: Document,
    /// One line for each choice, with its reason.
    pub choices: Vec<String>,
}

/// Options common to all jobs.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// Paths, globs and folders of data, relative to the current directory.
    pub data: Vec<String>,
    /// Tokenizer to use instead of the usual one.
    pub tokenizer: Option<String>,
    /// Chat template to use instead of the tokenizer's.
    pub chat_template: Option<PathBuf>,
    /// Half-precision dtype of a GPU: "bf16", or "f16" for an old one; `None` on a CPU.
    pub half: Option<&'static str>,
    /// Directories to which paths are relative.
    pub directories: Directories,
}

impl JobOptions {
    pub(crate) fn on_gpu(&self) -> bool {
        self.half.is_some()
    }
}

impl Draft {
    pub(crate) fn new(job: &str) -> Self {
        let title = format!(
            "Made by `plimsoll new {job}`. Every key is in docs/configuration.md; paths are relative \
             to this file."
        );
        Self { document: Document::new(vec![title]), choices: Vec::new() }
    }

    pub(crate) fn choose(&mut self, choice: impl Into<String>) {
        self.choices.push(choice.into());
    }

    /// Sets `data.kind` and `data.paths`.
    pub(crate) fn set_data(&mut self, kind: &str, comment: &str, paths: &[String], options: &JobOptions) {
        let paths: Vec<String> =
            paths.iter().map(|path| options.directories.for_configuration(path)).collect();
        self.document.set(config::Data::kind, kind, comment);
        self.document.set(config::Data::paths, paths.as_slice(), "files and globs");
    }

    /// Sets the micro-batch size and the global batch size.
    pub(crate) fn set_batch(&mut self, unit: &str, micro_batch: usize, global_batch: usize) {
        let micro_comment = format!("{unit} in one pass");
        self.document.set(config::Train::micro_batch_size, micro_batch, micro_comment);
        let global_comment = format!("{unit} in a step, over all ranks");
        self.document.set(config::Train::global_batch_size, global_batch, global_comment);
    }

    /// Sets the dtype of activations, if the device is a GPU.
    pub(crate) fn set_precision(&mut self, options: &JobOptions) {
        if let Some(half) = options.half {
            let comment = "type of activations; masters, sums and the loss stay f32";
            self.document.set(config::Precision::compute, half, comment);
            self.choose(format!("precision.compute = \"{half}\": the device is a GPU"));
        }
    }
}
