//! The fine-tuned model at the end of a run: its path, and the commands to use it.

use std::fmt;
use std::path::{Path, PathBuf};

use config::{DataKind, RunConfig};
use worker::Setup;

/// A model that a run has fine-tuned.
#[derive(Clone, Debug)]
pub struct TunedModel {
    run_dir: PathBuf,
    checkpoint: PathBuf,
    has_adapters: bool,
    /// Whether the model is a chat model.
    is_chat: bool,
}

impl TunedModel {
    /// Returns the fine-tuned model of a run; `None` if the run did not start from a model folder or kept no
    /// checkpoint.
    pub(crate) fn from_run(setup: &Setup, run_dir: &Path) -> Option<Self> {
        let config: &RunConfig = &setup.config;
        config.model.weights()?;
        let (_, checkpoint) = checkpoint::list(run_dir).ok()?.pop()?;
        Some(TunedModel {
            run_dir: run_dir.to_owned(),
            checkpoint,
            has_adapters: config.lora.rank > 0,
            is_chat: config.data.kind == DataKind::Chat,
        })
    }
}

impl fmt::Display for TunedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TunedModel { run_dir, checkpoint, has_adapters, is_chat } = self;
        let run = run_dir.display();
        let what = if *has_adapters { "adapters are" } else { "model is" };
        writeln!(f, "The {what} in {}", checkpoint.display())?;
        let talk = if *is_chat { "--chat" } else { "--prompt TEXT" };
        writeln!(f, "  to try it:                  plimsoll sample {run} {talk}")?;
        if *has_adapters {
            writeln!(f, "  as a folder of PEFT:        plimsoll export {run} -o DIR")?;
            return writeln!(f, "  merged, a whole model:      plimsoll export {run} --merge -o DIR");
        }
        writeln!(f, "  as a Hugging Face folder:   plimsoll export {run} -o DIR")
    }
}
