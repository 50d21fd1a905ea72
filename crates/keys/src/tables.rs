//! Lists of tables, the values of keys such as `[[data.mixture]]`.

use crate::codec::Reading;
use crate::table::nearest;
use crate::takes::Takes;
use crate::value::Value;

/// Reads every table of a list by `read`, which returns a sentence about a mistake. Messages call a table
/// `noun` and its number, from 1.
pub fn read_tables<T>(
    value: &Value,
    noun: &str,
    read: impl Fn(&[(String, Value)]) -> Result<T, String>,
) -> Reading<Vec<T>> {
    let Value::List(tables) = value else { return Reading::WrongType };
    let read = |(index, table): (usize, &Value)| {
        let table = match table {
            Value::Table(entries) => read(entries),
            _ => Err("it is no table".to_owned()),
        };
        table.map_err(|reason| format!("{noun} {}: {reason}", index + 1))
    };
    match tables.iter().enumerate().map(read).collect() {
        Ok(tables) => Reading::Good(tables),
        Err(reason) => Reading::Refused(reason),
    }
}

/// Returns the value that `reading` read from `value`, the key `name` of a table.
///
/// # Errors
/// A sentence about a value that is not among those that the key takes.
pub fn read_in_table<T>(name: &str, value: &Value, takes: &Takes, reading: Reading<T>) -> Result<T, String> {
    match reading {
        Reading::Good(value) => Ok(value),
        Reading::Refused(reason) => Err(format!("{name}: {reason}")),
        Reading::OutOfRange | Reading::WrongType => Err(format!("{name} = {value} is not {takes}")),
    }
}

/// Returns a sentence about the key `name`, which a table with `keys` does not have.
pub fn unknown_in_table(name: &str, keys: &[&str]) -> String {
    let near = nearest(name, keys.iter().copied());
    let near = near.map_or(String::new(), |near| format!(": did you mean {near}?"));
    format!("unknown key {name}{near}")
}
