//! An object of a file.

use std::ops::ControlFlow;

use serde_json::{Map, Value};

use crate::Error;

/// An object of a file.
#[derive(Debug)]
pub(crate) struct Record {
    /// Line on which it begins, or row of Parquet, from 1.
    pub(crate) line: u64,
    pub(crate) values: Map<String, Value>,
    /// Keys whose values contain a non-finite number or half a surrogate pair.
    pub(crate) unreadable: Vec<String>,
}

/// Receives records, and errors for lines that are not objects, until it breaks.
pub(crate) type Take<'a> = &'a mut dyn FnMut(Result<Record, Error>) -> ControlFlow<Result<(), Error>>;
