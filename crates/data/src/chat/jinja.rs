//! The Jinja engine for chat templates, with limits on steps and text size.

use std::fmt;
use std::io::{self, Write};

use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State, context};
use system::numbers::grouped;

use super::dialogue::TemplateInput;
use super::marks::{MARKS, Marks};
use super::python::{JsonOptions, write_json, write_text};

/// Name of the template in its Jinja environment.
const NAME: &str = "chat";
/// Maximum number of engine instructions per text; a message takes about a hundred.
const MOST_STEPS: u64 = 10_000_000;
/// Maximum size of a text in bytes.
const MOST_TEXT: usize = 128 << 20;
/// Maximum indentation of `tojson`, in spaces.
const MOST_INDENT: usize = 64;

/// A compiled template, with the special tokens it may refer to.
#[derive(Debug)]
pub(super) struct Jinja {
    environment: Environment<'static>,
    special: Vec<(String, String)>,
}

impl Jinja {
    /// Compiles a template.
    ///
    /// # Errors
    /// The text is not a valid template.
    pub(super) fn new(text: String, special: Vec<(String, String)>) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MOST_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(print);
        environment.add_filter("tojson", to_json);
        environment.add_filter("string", to_text);
        environment.add_function("raise_exception", |message: String| -> Result<String, _> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, text).map_err(|error| error.to_string())?;
        Ok(Self { environment, special })
    }

    /// Renders `messages` as text. `prompts`: whether to append the generation prompt. `marks`: characters to
    /// put around the answers.
    ///
    /// # Errors
    /// The template refuses the messages, takes too many steps, or writes too long a text.
    pub(super) fn render(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        prompts: bool,
        marks: Option<Marks>,
    ) -> Result<String, String> {
        // Variables of a conversation take precedence over special tokens.
        let special = self.special.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str())));
        let own = input.variables.iter().map(|(name, value)| (name.as_str(), Value::from_serialize(value)));
        let marks = MARKS.into_iter().zip(marks.into_iter().flatten().map(Value::from));
        let variables = Value::from_iter(special.chain(own).chain(marks));
        let values = context! {
            messages => Value::from_serialize(messages),
            add_generation_prompt => prompts,
            // As transformers pass them; templates ask whether they are none.
            tools => Value::from_serialize(&input.tools),
            documents => (),
            ..variables
        };
        let template = self.environment.get_template(NAME).map_err(|error| error.to_string())?;
        let mut text = Bounded::default();
        let rendered = template.render_captured_to(values, &mut text).map(drop);
        match rendered {
            Ok(()) => String::from_utf8(text.bytes).map_err(|error| error.to_string()),
            Err(_) if text.is_full => {
                Err(format!("its text has more than {} bytes", grouped(MOST_TEXT as u64)))
            }
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                Err(format!("it takes more than {} steps", grouped(MOST_STEPS)))
            }
            Err(error) => Err(error.detail().map_or_else(|| error.to_string(), str::to_owned)),
        }
    }
}

/// Prints a value as Python does.
fn print(output: &mut Output<'_>, _: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    write_text(value, output).map_err(|_| Error::new(ErrorKind::WriteFailure, "a value cannot be printed"))
}

/// The filter `string`: converts a value to text as Python does.
fn to_text(value: &Value) -> Result<String, Error> {
    let mut text = Bounded::default();
    let written = write_text(value, &mut text);
    text.finish(written)
}

/// The filter `tojson` of transformers, with the options of `json.dumps` in the same order.
fn to_json(value: &Value, listed: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if listed.len() > NAMES.len() {
        return Err(ErrorKind::TooManyArguments.into());
    }
    let mut values = [const { None }; NAMES.len()];
    for (index, name) in NAMES.into_iter().enumerate() {
        let own =
            listed.get(index).cloned().map_or_else(|| named.get::<Option<Value>>(name), |own| Ok(Some(own)));
        values[index] = own?.filter(|value| !value.is_none());
    }
    named.assert_all_used()?;
    let [ensure_ascii, indent, separators, sort_keys] = values;
    let options = JsonOptions {
        ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
        separators: match separators {
            Some(separators) => separator_texts(&separators)?,
            None if indent.is_some() => [",", ": "].map(str::to_owned),
            None => [", ", ": "].map(str::to_owned),
        },
        sort_keys: sort_keys.is_some_and(|value| value.is_true()),
        indent: indent.map(|indent| indent_text(&indent)).transpose()?,
    };
    let mut text = Bounded::default();
    let written = write_json(value, &options, 0, &mut text);
    text.finish(written)
}

fn separator_texts(separators: &Value) -> Result<[String; 2], Error> {
    let texts = separators.try_iter()?.map(|text| text.as_str().map(str::to_owned));
    let texts: Option<Vec<String>> = texts.collect();
    texts.and_then(|texts| texts.try_into().ok()).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "the separators of tojson are two texts".to_owned())
    })
}

/// Converts an indent, a text or a number of spaces, to text.
fn indent_text(indent: &Value) -> Result<String, Error> {
    let refused = |what: String| {
        let text = format!("tojson indents by at most {MOST_INDENT} spaces, not {what}");
        Error::new(ErrorKind::InvalidOperation, text)
    };
    let own = indent.as_str().map(str::to_owned);
    let spaces = || match indent.as_i64() {
        Some(..0) => Ok(String::new()),
        Some(count) if count <= MOST_INDENT as i64 => Ok(" ".repeat(count as usize)),
        Some(count) => Err(refused(grouped(count as u64))),
        None => Err(refused(indent.to_string())),
    };
    let text = own.map_or_else(spaces, Ok)?;
    if text.len() > MOST_INDENT { Err(refused(grouped(text.len() as u64))) } else { Ok(text) }
}

/// A text buffer of limited size.
#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Bounded {
    /// Returns the text, or an error if writing failed.
    fn finish(self, written: fmt::Result) -> Result<String, Error> {
        let failed = |what| Error::new(ErrorKind::BadSerialization, what);
        if self.is_full {
            return Err(failed(format!("it has more than {} bytes", grouped(MOST_TEXT as u64))));
        }
        written.map_err(|_| failed("a value is no JSON".to_owned()))?;
        String::from_utf8(self.bytes).map_err(|error| failed(error.to_string()))
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write_all(text.as_bytes()).map_err(|_| fmt::Error)
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_full |= bytes.len() > MOST_TEXT - self.bytes.len();
        if self.is_full {
            return Err(io::Error::other(format!("it has more than {} bytes", grouped(MOST_TEXT as u64))));
        }
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_text_are_bounded() {
        let nested = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        for (text, words) in [
            (nested, "it takes more than 10,000,000 steps"),
            ("{{ 'x' * 99999999 }}{{ 'x' * 99999999 }}", "its text has more than 134,217,728 bytes"),
            ("{{ {'a': 1} | tojson(indent=1000000000) }}", "at most 64 spaces, not 1,000,000,000"),
            ("{{ ('x' * 2199999) | list | tojson(indent=64) }}", "it has more than 134,217,728 bytes"),
        ] {
            let refused = Jinja::new(text.to_owned(), Vec::new())
                .unwrap()
                .render(&[], &TemplateInput::default(), false, None)
                .unwrap_err();
            assert!(refused.contains(words), "{text}: {refused}");
        }
    }
}
