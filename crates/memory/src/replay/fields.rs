//! JSON values that are read with errors naming the position in the file.

use std::collections::HashMap;

use serde_json::Value;

use super::recording::RecordingError;

/// A JSON value and its path in the file.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) value: &'a Value,
    position: &'a str,
}

impl<'a> Field<'a> {
    pub(super) fn new(value: &'a Value, position: &'a str) -> Field<'a> {
        Field { value, position }
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, RecordingError> {
        Err(RecordingError::format(format!("`{}` is not {expected}", self.position)))
    }

    pub(super) fn get(&self, key: &'a str) -> Result<Field<'a>, RecordingError> {
        match self.value.get(key) {
            Some(value) => Ok(Field { value, position: key }),
            None => Err(RecordingError::format(format!("`{key}` is missing"))),
        }
    }

    pub(super) fn at(&self, index: usize) -> Result<Field<'a>, RecordingError> {
        match self.value.get(index) {
            Some(value) => Ok(Field { value, position: self.position }),
            None => Err(RecordingError::format(format!("`{}` has no item {index}", self.position))),
        }
    }

    pub(super) fn items(&self) -> Result<impl Iterator<Item = Field<'a>> + use<'a>, RecordingError> {
        let position = self.position;
        match self.value.as_array() {
            Some(items) => Ok(items.iter().map(move |value| Field { value, position })),
            None => self.wrong("a list"),
        }
    }

    pub(super) fn unsigned(&self) -> Result<u64, RecordingError> {
        self.value.as_u64().map_or_else(|| self.wrong("a whole number from 0 on"), Ok)
    }

    pub(super) fn signed(&self) -> Result<i64, RecordingError> {
        self.value.as_i64().map_or_else(|| self.wrong("a whole number"), Ok)
    }

    pub(super) fn text(&self) -> Result<&'a str, RecordingError> {
        self.value.as_str().map_or_else(|| self.wrong("a text"), Ok)
    }

    /// Reads true, false, 1 or 0.
    pub(super) fn flag(&self) -> Result<bool, RecordingError> {
        match (self.value.as_bool(), self.value.as_u64()) {
            (Some(flag), _) => Ok(flag),
            (None, Some(number)) => Ok(number != 0),
            _ => self.wrong("true or false"),
        }
    }
}

/// Assigns numbers to names in the order of their first appearance.
#[derive(Default)]
pub(super) struct Names(HashMap<String, u32>);

impl Names {
    pub(super) fn number(&mut self, name: &str) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }
}
