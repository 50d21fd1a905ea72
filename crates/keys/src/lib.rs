//! Configuration keys: one definition per key, from which everything about it is derived.
//!
//! The one idea: a section of the configuration is written once, as a struct whose fields carry their rows
//! ([`section!`]). A [`Row`] has the field's type, the values that the key accepts, its default, what its
//! value affects, and how it is read and written. The field's doc comment documents the key. The rows give
//! the typed struct, the refusal of invalid values in one sentence that names key, file and line ([`Error`]),
//! the suggestion for a misspelt name, the resolved text, and the [`reference()`].
//!
//! This crate contains no keys. `config` and the model families of `nn` define theirs with it, collect them
//! in a [`Table`], and read a file and the command line through [`RawValues`].
//!
//! ```
//! use std::path::Path;
//! use keys::{RawValues, Row, Section, Table, Takes};
//!
//! keys::section! {
//!     /// `[oven]`: how to bake.
//!     pub struct Oven = "oven" {
//!         /// Degrees Celsius.
//!         degrees: u64 = Row::integer(50, 300).default("180");
//!         /// Minutes until it is done.
//!         minutes: u64 = Row::integer(1, 600).derived("a third of `degrees`", |given| {
//!             Ok((given.integer(Oven::degrees)? / 3).into())
//!         });
//!     }
//! }
//!
//! let table = Table::new(Oven::keys().into_iter().cloned().collect());
//! let raw = RawValues::parse(&table, "[oven]\ndegrees = 90\n", "bread.toml", Path::new("/"), &[])?;
//! assert_eq!(Oven::read(&raw)?, Oven { degrees: 90, minutes: 30 });
//!
//! let raw = RawValues::parse(&table, "[oven]\ndegrees = 900\n", "bread.toml", Path::new("/"), &[])?;
//! assert_eq!(
//!     Oven::read(&raw).unwrap_err().to_string(),
//!     "bread.toml:2: oven.degrees = 900 is not an integer from 50 to 300",
//! );
//! # Ok::<(), keys::Error>(())
//! ```

mod codec;
mod document;
mod entry;
mod error;
mod key;
mod origin;
mod origins;
mod overrides;
mod raw_values;
mod reference;
mod row;
mod section;
mod table;
mod tables;
mod takes;
mod value;

pub use codec::Reading;
pub use document::Document;
pub use error::{Error, Result};
pub use key::{Default, Key, Only, Renamed};
pub use origin::Origin;
pub use origins::Origins;
pub use raw_values::{Implied, RawValues};
pub use reference::{defaults, reference};
pub use row::Row;
pub use section::{KeyValues, Section};
pub use table::{ForeignName, Table, nearest};
pub use tables::{read_in_table, read_tables, unknown_in_table};
pub use takes::{Interval, Takes};
pub use value::Value;
