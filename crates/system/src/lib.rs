//! The operating system's files, terminals and threads, with limits and checks.
//!
//! **Inputs are bounded, and outputs are written whole.** A file that is read is a regular file within a size
//! limit ([`input`]), or is read line by line, each within a limit ([`lines`]); reading never waits on a
//! FIFO. An error names the file and the operation that failed ([`file_error`]). A file that is written has
//! its old content or all of its new one, replaces no file of another origin, and is not reached through a
//! link ([`output`]); files that are executed must be this user's own ([`private`]). Text printed to a
//! terminal cannot control it ([`terminal`]), long numbers in it have grouped digits ([`numbers`]), and long
//! input is shortened ([`quoted`]). Files of other programs have keys that are known, ignored or refused
//! ([`readers`]), and may stand in for others ([`stand_in`]); what is left out is counted ([`tally`]). A
//! thread that cannot be started is an error with a sentence ([`threads`]). Work on untrusted data is done by
//! a second process, whose limits end only itself ([`confined`]). The process ends without exit handlers of
//! libraries ([`exit`]). Long work says at times how far it is ([`pace`]). Tests stop a process at the point
//! where they kill it ([`fail_point`]), and report what they cannot test here ([`skipped`]).
//!
//! ```
//! use system::output::{OutputFile, Replace};
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("page.html");
//! OutputFile::new(&path, Replace::Marked("Plimsoll"))?.write(b"<title>Plimsoll</title>")?;
//! assert_eq!(system::input::read_text(&path, 1 << 20)?, "<title>Plimsoll</title>");
//! std::fs::write(&path, "mine")?;
//! assert!(OutputFile::new(&path, Replace::Marked("Plimsoll")).is_err());
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod confined;
pub mod environment;
pub mod exit;
pub mod fail_point;
pub mod file_error;
pub mod input;
pub mod lines;
mod names;
pub mod numbers;
pub mod output;
pub mod pace;
pub mod private;
pub mod quoted;
pub mod readers;
pub mod skipped;
pub mod stand_in;
pub mod tally;
pub mod terminal;
pub mod threads;
