//! An object of a file.

use std::ops::ControlFlow;

use serde_json::{Map, Value};

use crate::Error;

/// An object of a file.
#[derive(Debug)]
pub(crate) struct Record {
    /// The line on which it begins, or the row of Parquet, from 1.
    pub(crate) line: u64,
    pub(crate) values: Map<String, Value>,
    /// Keys whose values contain a number that is not finite or half of a surrogate pair.
    pub(crate) unreadable: Vec<String>,
}

/// Receives records, and the errors of lines that are no object, until it breaks.
pub(crate) type Take<'a> = &'a mut dyn FnMut(Result<Record, Error>) -> ControlFlow<Result<(), Error>>;
