//! Reads one text column of a Parquet file.

use crate::error::{Error, Result};
use crate::progress::BytesRead;
use crate::unit::Content;
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::ByteArrayType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::fs::File;
use std::path::Path;
use system::file_error::FileContext;

/// Number of rows read at once.
const ROWS: usize = 256;

/// Passes the column `name` of each row to `take`, until it returns false. A row without a value is passed as
/// invalid.
pub(crate) fn read(
    path: &Path,
    name: &str,
    read: &BytesRead,
    take: &mut dyn FnMut(Content) -> bool,
) -> Result<bool> {
    let invalid = |reason: String| Error::Invalid { path: path.to_path_buf(), line: None, reason };
    let unreadable = |error: ParquetError| invalid(error.to_string());
    let file = system::input::open(path).context(path, "open it")?;
    let bytes = file.metadata().context(path, "read it")?.len();
    let file = SerializedFileReader::new(file).map_err(unreadable)?;
    let (column, most_definitions) = find(&file, name).map_err(invalid)?;
    let groups = file.num_row_groups();
    for group in 0..groups {
        let group = file.get_row_group(group).map_err(unreadable)?;
        let ColumnReader::ByteArrayColumnReader(mut reader) =
            group.get_column_reader(column).map_err(unreadable)?
        else {
            return Err(invalid(format!("its column \"{name}\" holds no text")));
        };
        if !rows(&mut reader, most_definitions, take).map_err(unreadable)? {
            return Ok(false);
        }
        read.add(bytes / groups as u64);
    }
    Ok(true)
}

/// Returns the index of the column, and the definition level at which its values are present.
fn find(file: &SerializedFileReader<File>, name: &str) -> std::result::Result<(usize, i16), String> {
    let schema = file.metadata().file_metadata().schema_descr();
    let names = || schema.columns().iter().map(|column| format!("\"{}\"", column.path().string()));
    let index = schema.columns().iter().position(|column| column.path().string() == name);
    let Some(index) = index else {
        let names: Vec<String> = names().collect();
        return Err(format!("it has no column \"{name}\"; there is {}", names.join(", ")));
    };
    let column = schema.column(index);
    if column.physical_type() != Type::BYTE_ARRAY || column.max_rep_level() > 0 {
        return Err(format!("its column \"{name}\" holds no text"));
    }
    Ok((index, column.max_def_level()))
}

fn rows(
    reader: &mut ColumnReaderImpl<ByteArrayType>,
    most_definitions: i16,
    take: &mut dyn FnMut(Content) -> bool,
) -> std::result::Result<bool, ParquetError> {
    loop {
        let mut values = Vec::new();
        let mut definitions = Vec::new();
        let (records, ..) = reader.read_records(ROWS, Some(&mut definitions), None, &mut values)?;
        if records == 0 {
            return Ok(true);
        }
        let mut values = values.into_iter();
        for row in 0..records {
            let is_there = most_definitions == 0 || definitions.get(row) == Some(&most_definitions);
            let value = if is_there { values.next() } else { None };
            let content = match value {
                Some(value) => Content::Text(value.data().to_vec()),
                None => Content::Invalid("it has no text".to_owned()),
            };
            if !take(content) {
                return Ok(false);
            }
        }
    }
}
