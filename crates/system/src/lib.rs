//! The operating system as the program meets it: files that may be anything, terminals, threads.
//!
//! **Whatever comes from outside is bounded, and whatever goes out is whole.** A file that is read is a
//! regular file of at most so many bytes ([`input`]), never a FIFO that is waited for. A file that is written
//! has its old content or all of its new one, replaces nothing that somebody else wrote, and is not reached
//! through a link ([`output`]); what is run must be this user's own ([`private`]). Text that reaches a
//! terminal cannot steer it ([`terminal`]). Threads that cannot be started are an error with a sentence
//! ([`threads`]). Tests hold a process where a kill is meant to hit it ([`fail_point`]).
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

pub mod fail_point;
pub mod input;
pub mod output;
pub mod private;
pub mod terminal;
pub mod threads;
