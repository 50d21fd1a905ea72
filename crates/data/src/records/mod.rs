//! Reads objects from files: JSON lines, one JSON list, or the rows of Parquet; plain or compressed.

mod lines;
mod list;
#[cfg(feature = "parquet")]
mod parquet_rows;
mod python;
mod record;
mod unpack;

use std::fs::File;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Map, Value};

use crate::Error;
use python::Object;
use record::Take;
use unpack::Contents;

use lines::BYTE_ORDER_MARK;

pub use lines::{TextError, each_object};
pub use python::python_text;
pub(crate) use record::Record;
pub use unpack::{LEFT_OUT, packing};

/// Passes every object of a file to `each`.
///
/// # Errors
/// The file cannot be read, a line is not an object, a list does not end, or `each` fails.
pub(crate) fn each_record(
    path: &Path,
    mut each: impl FnMut(Record) -> Result<(), Error>,
) -> Result<(), Error> {
    each_line(path, |record| each(record?))
}

/// Passes every object of a file to `each`, and an error for every line or element that is not an object.
///
/// # Errors
/// The file cannot be read, a list does not end, or `each` fails.
pub(crate) fn each_line(
    path: &Path,
    mut each: impl FnMut(Result<Record, Error>) -> Result<(), Error>,
) -> Result<(), Error> {
    for_each_record(path, &mut |record| match each(record) {
        Ok(()) => ControlFlow::Continue(()),
        error => ControlFlow::Break(error),
    })
}

/// Returns the first object of a file; `None` if it has none.
pub(crate) fn first_record(path: &Path) -> Result<Option<Record>, Error> {
    let mut first = None;
    for_each_record(path, &mut |record| ControlFlow::Break(record.map(|record| first = Some(record))))?;
    Ok(first)
}

/// Returns the first object of a file of JSON lines, one JSON list or Parquet, plain or compressed; `None` if
/// it has none.
///
/// # Errors
/// The file cannot be read, or its first line is not an object.
pub fn first_object(path: &Path) -> Result<Option<Map<String, Value>>, Error> {
    Ok(first_record(path)?.map(|record| record.values))
}

/// Returns the first byte of a text that is not white space; `None` for Parquet, or if there is none near the
/// start.
///
/// # Errors
/// The file cannot be read, or its format is not supported.
pub(crate) fn first_byte(path: &Path) -> Result<Option<u8>, Error> {
    let Contents::Text(mut text) = Contents::open(path)? else { return Ok(None) };
    let unreadable = |source| Error::Unreadable { path: path.to_path_buf(), source };
    let start = text.fill_buf().map_err(unreadable)?;
    let start = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start);
    Ok(start.trim_ascii_start().first().copied())
}

fn for_each_record(path: &Path, take: Take<'_>) -> Result<(), Error> {
    let flow = match Contents::open(path)? {
        Contents::Text(mut text) => {
            let wrong = |line, reason| Error::BadConversation { path: path.to_path_buf(), line, reason };
            let read = each_object(&mut text, |line, text| match Object::parse(text) {
                Ok(Object { values, unreadable }) => take(Ok(Record { line, values, unreadable })),
                Err(reason) => take(Err(wrong(line, reason))),
            });
            read.map_err(|error| match error {
                TextError::Unreadable(source) => Error::Unreadable { path: path.to_path_buf(), source },
                TextError::Invalid { line, reason } => wrong(line, reason.to_owned()),
            })?
        }
        Contents::Parquet(file) => parquet(path, file, take),
    };
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(result) => result,
    }
}

#[cfg(feature = "parquet")]
fn parquet(path: &Path, file: File, take: Take<'_>) -> ControlFlow<Result<(), Error>> {
    parquet_rows::read(path, file, take)
}

#[cfg(not(feature = "parquet"))]
fn parquet(path: &Path, _file: File, _take: Take<'_>) -> ControlFlow<Result<(), Error>> {
    ControlFlow::Break(Err(Error::WrongFile { path: path.to_path_buf(), reason: LEFT_OUT.to_owned() }))
}
