//! Files, terminals and threads of the operating system, with limits and checks.
//!
//! **Inputs are bounded, and outputs are written whole.** A file must be regular and within a size limit
//! ([`input`]), or is read line by line with a limit per line ([`lines`]); reading never waits on a FIFO.
//! Errors name the file and the failed operation ([`file_error`]). A written file has either its old content
//! or all of its new content, replaces no file of another origin, and is not reached through a link
//! ([`output`]). Files that are executed must belong to this user ([`private`]). Text printed to a terminal
//! cannot control it ([`terminal`]), long numbers have grouped digits ([`numbers`]), and long quoted input is
//! shortened ([`quoted`]). Keys of other programs' files are known, ignored or refused ([`readers`]); such
//! files may be mere pointers ([`stand_in`]); skipped items are counted ([`tally`]). A thread that cannot be
//! started is an error with a sentence ([`threads`]). Work on untrusted data runs in a second process, whose
//! limits end only itself ([`confined`]). The process ends without exit handlers of libraries ([`exit`]).
//! Long work reports its progress at intervals ([`pace`]). Tests pause a process at the point where they kill
//! it ([`fail_point`]), and report what they cannot test ([`skipped`]).
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
