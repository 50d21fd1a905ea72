//! A live view of a run: a row for every rank, the loss over time, and warnings.
//!
//! The one idea: **watching only reads files that a run writes anyway**, so it slows nothing, works from
//! another terminal, and also shows a run that has ended.
//!
//! ```no_run
//! let mut run = watch::RunView::open(std::path::Path::new("runs/seen"))?;
//! run.refresh()?;
//! print!("{}", watch::frame(&run, 120));
//! # Ok::<(), run::RunError>(())
//! ```

mod draw;
mod interactive;
mod ranks;
mod run_view;
mod tail;
mod warnings;

pub use draw::frame;
pub use interactive::{WatchError, watch};
pub use run_view::RunView;
