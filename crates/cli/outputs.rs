//! Output files of commands: checked before the result is computed, and written atomically.

use std::io::ErrorKind;
use std::path::Path;

use system::output::{OutputFile, Replace};
use telemetry::{report, timeline};

use crate::error::CliError;

/// Argument of commands that write user-named files.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Force {
    /// Replace output files that Plimsoll did not write, and existing tokenizers, configurations and
    /// measurements.
    #[arg(long)]
    force: bool,
}

/// Kind of an output. Determines which existing files may be replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// An HTML page ([`report::Report`]).
    Page,
    /// A picture in SVG, such as a pipeline's schedule.
    Picture,
    /// A timeline as a Chrome trace.
    Trace,
    /// A measurement that took long, and therefore replaces no file.
    Measurement,
    /// A configuration, which replaces no file because users edit them.
    Configuration,
}

/// First line of an SVG file, which marks it as written by Plimsoll.
const PICTURE: &str = "<!-- Plimsoll -->\n";

/// An output file that is ready to be written.
#[derive(Debug)]
pub(crate) struct Output {
    file: OutputFile,
    kind: Kind,
}

impl Force {
    /// Replaces any file; for files whose content the command has already verified.
    pub(crate) const ALWAYS: Force = Force { force: true };

    /// Checks that `path` can be written, before anything is computed. `argument` is the option's name for
    /// errors.
    ///
    /// # Errors
    /// The path cannot be written, or an existing file may not be replaced.
    pub(crate) fn output(self, argument: &str, path: &Path, kind: Kind) -> Result<Output, CliError> {
        let replace = match kind {
            _ if self.force => Replace::Anything,
            Kind::Page => Replace::Marked(report::MARK),
            Kind::Picture => Replace::Marked(PICTURE),
            Kind::Trace => Replace::Marked(timeline::MARK),
            Kind::Measurement | Kind::Configuration => Replace::Nothing,
        };
        let file = OutputFile::new(path, replace).map_err(|error| {
            let exists = error.kind() == ErrorKind::AlreadyExists;
            let way_out = if exists { ": --force replaces it" } else { "" };
            let argument = if argument.is_empty() { String::new() } else { format!("{argument} ") };
            CliError::Refused(format!("{argument}{}: {error}{way_out}", path.display()))
        })?;
        Ok(Output { file, kind })
    }
}

impl Output {
    /// Writes the file.
    pub(crate) fn write(self, text: &str) -> Result<(), CliError> {
        let path = self.file.path().to_owned();
        let head = if matches!(self.kind, Kind::Picture) { PICTURE } else { "" };
        let written = self.file.write(format!("{head}{text}").as_bytes());
        written.map_err(|source| CliError::File { path, source })
    }
}
