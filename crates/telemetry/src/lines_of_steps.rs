//! Files with one line per step: which lines a resumed run keeps.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use system::file_error::FileContext;
use system::lines::{Line, Lines};
use system::output;

use crate::error::{Result, Unreadable};

/// Maximum bytes of a line. The hashes of one step of a large model take some megabytes.
pub(crate) const MOST_LINE: u64 = 256 << 20;

/// Checks that no line of a file is longer than the maximum. A missing file passes.
///
/// # Errors
/// A line is too long (the error names its number), or the file cannot be read.
pub fn check(path: &Path) -> Result<()> {
    let mut lines = match Lines::open(path, MOST_LINE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        lines => lines.unreadable(path)?,
    };
    while lines.next_line().unreadable(path)?.is_some() {}
    Ok(())
}

/// The fate of a line when a run resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// The line of a completed step.
    Kept,
    /// A line without a step number, or whose number is out of order.
    Damaged,
    /// The line of a step that the resumed run repeats, or the incomplete last line of a killed run.
    Dropped,
}

#[derive(Debug)]
struct StepLine {
    text: Vec<u8>,
    range: Range<u64>,
    is_complete: bool,
    /// Number of the step; `None` if the line does not parse.
    step: Option<u64>,
}

impl StepLine {
    fn parse(line: &Line<'_>) -> Self {
        #[derive(Deserialize)]
        struct Step {
            step: u64,
        }
        StepLine {
            text: line.text.to_owned(),
            range: line.range.clone(),
            is_complete: line.is_complete,
            step: serde_json::from_slice::<Step>(line.text).ok().map(|line| line.step),
        }
    }

    /// Returns the line's fate when resuming after `step`, if the last kept line is of step `last` and the
    /// next line of step `next`.
    fn used(&self, step: u64, last: u64, next: Option<u64>) -> Use {
        let fits = |own: &u64| *own > last && next.is_none_or(|next| next <= last || next > *own);
        match self.step.filter(fits) {
            _ if !self.is_complete => Use::Dropped,
            None => Use::Damaged,
            Some(own) if own <= step => Use::Kept,
            Some(_) => Use::Dropped,
        }
    }
}

/// Calls `take` with every line of a file and its fate, for a run that resumes after `step` steps.
fn sort(path: &Path, step: u64, mut take: impl FnMut(&StepLine, Use) -> io::Result<()>) -> io::Result<()> {
    let mut lines = Lines::open(path, MOST_LINE)?;
    let mut last = 0;
    let mut before = None::<StepLine>;
    loop {
        let next = lines.next_line()?.map(|line| StepLine::parse(&line));
        if let Some(line) = &before {
            let used = line.used(step, last, next.as_ref().and_then(|next| next.step));
            if used == Use::Kept {
                last = line.step.unwrap_or(last);
            }
            take(line, used)?;
        }
        if next.is_none() {
            return Ok(());
        }
        before = next;
    }
}

/// Moves the damaged lines of a file to a separate one, for a run that resumes after `step` steps. Returns
/// the length of the kept lines in bytes.
///
/// # Errors
/// The file cannot be read or written, or a line is too long.
pub(crate) fn keep_until(path: &Path, step: u64) -> Result<u64> {
    let (mut end, mut kept, mut damaged) = (0, 0, 0_u64);
    let count = |line: &StepLine, used: Use| {
        match used {
            Use::Kept => (end, kept) = (line.range.end, kept + (line.range.end - line.range.start)),
            Use::Damaged => damaged += 1,
            Use::Dropped => {}
        }
        Ok(())
    };
    sort(path, step, count).unreadable(path)?;
    if damaged == 0 {
        return Ok(end);
    }
    let aside = path.with_extension("damaged.jsonl");
    let mut options = OpenOptions::new();
    let moved = output::open_own(&aside, options.append(true).create(true));
    let mut moved = moved.context(&aside, "open it")?;
    let write = |out: &mut dyn Write| {
        sort(path, step, |line, used| {
            let to = match used {
                Use::Kept => &mut *out,
                Use::Damaged => &mut moved,
                Use::Dropped => return Ok(()),
            };
            to.write_all(&line.text)?;
            to.write_all(b"\n")
        })?;
        // Nothing is lost if the system stops now.
        moved.sync_all()
    };
    output::write_own_with(path, write).context(path, "move its damaged lines")?;
    let lines = if damaged == 1 { "line is" } else { "lines are" };
    let aside = aside.display();
    tracing::warn!("{}: {damaged} damaged {lines} now in {aside}", path.display());
    Ok(kept)
}
