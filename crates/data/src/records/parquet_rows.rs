//! Reads the rows of a Parquet file as JSON objects.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use super::record::{Record, Take};
use crate::Error;

/// Passes every row to `take`. Null fields are left out, as in JSON.
pub(super) fn read(path: &Path, file: File, take: Take<'_>) -> ControlFlow<Result<(), Error>> {
    let wrong = |error: ParquetError| {
        let reason = format!("it is no Parquet file that can be read: {error}");
        ControlFlow::Break(Err(Error::WrongFile { path: path.to_path_buf(), reason }))
    };
    let reader = match SerializedFileReader::new(file) {
        Ok(reader) => reader,
        Err(error) => return wrong(error),
    };
    let rows = match reader.get_row_iter(None) {
        Ok(rows) => rows,
        Err(error) => return wrong(error),
    };
    for (line, row) in (1..).zip(rows) {
        match row {
            Ok(row) => take(Ok(Record { line, values: object(&row), unreadable: Vec::new() }))?,
            Err(error) => return wrong(error),
        }
    }
    ControlFlow::Continue(())
}

fn object(row: &Row) -> Map<String, Value> {
    let columns = row.get_column_iter().map(|(name, field)| (name.clone(), value(field)));
    columns.filter(|(_, value)| !value.is_null()).collect()
}

/// Converts a field to JSON; bytes that are not UTF-8 become null.
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(value) => (*value).into(),
        Field::Short(value) => (*value).into(),
        Field::Int(value) => (*value).into(),
        Field::Long(value) => (*value).into(),
        Field::UByte(value) => (*value).into(),
        Field::UShort(value) => (*value).into(),
        Field::UInt(value) => (*value).into(),
        Field::ULong(value) => (*value).into(),
        Field::Float(value) => (*value).into(),
        Field::Double(value) => (*value).into(),
        Field::Str(text) => text.as_str().into(),
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).map_or(Value::Null, Value::from),
        Field::Group(row) => object(row).into(),
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::MapInternal(map) => {
            let text = |key: &Field| value(key).as_str().map_or_else(|| key.to_string(), str::to_owned);
            map.entries().iter().map(|(key, field)| (text(key), value(field))).collect()
        }
        // Dates, times and decimals.
        other => other.to_string().into(),
    }
}
