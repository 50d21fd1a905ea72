//! Parses YAML, and therefore JSON, as a value of limited size.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// Maximum number of values in a document, including those repeated by aliases.
const MOST_VALUES: usize = 100_000;
/// Maximum nesting of lists and mappings.
const MOST_DEPTH: usize = 64;
/// Key that merges another mapping.
const MERGE: &str = "<<";

/// A value, and the number of values in it.
type Counted = (Value, usize);

struct Loader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: HashMap<usize, Counted>,
    values: usize,
}

/// Parses a text that is a single document.
///
/// # Errors
/// The text is not YAML, a key is repeated or not a string, or there are too many values; explained in a
/// sentence.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut loader = Loader { events: Parser::new_from_str(text), anchors: HashMap::new(), values: 0 };
    let mut document = None;
    loop {
        match loader.next()? {
            Event::StreamEnd => return Ok(document.unwrap_or(Value::Null)),
            Event::DocumentStart(_) if document.is_some() => {
                return Err("it has several documents".to_owned());
            }
            Event::DocumentStart(_) => {
                let event = loader.next()?;
                document = Some(loader.value(event, MOST_DEPTH)?.0);
            }
            _ => {}
        }
    }
}

impl<'a> Loader<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        match self.events.next() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(error.to_string()),
            None => Ok(Event::StreamEnd),
        }
    }

    /// Parses the value that begins with `event`.
    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<Counted, String> {
        let depth = depth.checked_sub(1).ok_or_else(|| format!("it has more than {MOST_DEPTH} levels"))?;
        let (counted, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => ((scalar(&text, style), 1), anchor),
            Event::Alias(anchor) => {
                let counted = self.anchors.get(&anchor).ok_or("an alias is inside of what it names")?;
                self.values = self.values.saturating_add(counted.1);
                self.check()?;
                return Ok(counted.clone());
            }
            Event::SequenceStart(anchor, _) => (self.list(depth)?, anchor),
            Event::MappingStart(anchor, _) => (self.mapping(depth)?, anchor),
            _ => ((Value::Null, 1), 0),
        };
        self.values += 1;
        self.check()?;
        if anchor > 0 {
            self.anchors.insert(anchor, counted.clone());
        }
        Ok(counted)
    }

    fn check(&self) -> Result<(), String> {
        if self.values > MOST_VALUES { Err(format!("it has more than {MOST_VALUES} values")) } else { Ok(()) }
    }

    fn list(&mut self, depth: usize) -> Result<Counted, String> {
        let mut list = Vec::new();
        let mut count = 1;
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok((Value::Array(list), count)),
                event => {
                    let (value, values) = self.value(event, depth)?;
                    list.push(value);
                    count += values;
                }
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Counted, String> {
        let mut mapping = Map::new();
        let mut merged = Vec::new();
        let mut count = 1;
        loop {
            let key = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err("a key is no text".to_owned()),
            };
            let event = self.next()?;
            let (value, values) = self.value(event, depth)?;
            count += values;
            match value {
                Value::Object(other) if key == MERGE => merged.push(other),
                value if mapping.contains_key(&key) => {
                    return Err(format!("the key {key} is there twice, the second time as {value}"));
                }
                value => drop(mapping.insert(key, value)),
            }
        }
        for (key, value) in merged.into_iter().flatten() {
            // The mapping's own keys take precedence.
            mapping.entry(key).or_insert(value);
        }
        Ok((Value::Object(mapping), count))
    }
}

/// Parses a scalar. A plain scalar may be a number, a boolean or null.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}

/// Parses a plain scalar as a number, if it begins like one.
fn number(text: &str) -> Option<Number> {
    let digits = text.trim_start_matches(['+', '-']);
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    text.parse::<i64>().ok().map(Number::from).or_else(|| Number::from_f64(text.parse().ok()?))
}
