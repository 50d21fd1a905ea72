//! The engine of chat templates, with limits on steps and text.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use system::numbers::grouped;

use super::dialogue::TemplateInput;
use super::json::python_json;

/// The name of the template within its environment.
const NAME: &str = "chat";
/// Most instructions of the engine for one text; a message takes about a hundred.
const MOST_STEPS: u64 = 10_000_000;
/// Most bytes of one text.
const MOST_TEXT: usize = 128 << 20;
/// Most spaces by which `tojson` indents.
const MOST_INDENT: usize = 64;

/// A compiled template with the special tokens that it may name.
#[derive(Debug)]
pub(super) struct Jinja {
    environment: Environment<'static>,
    special: Vec<(String, String)>,
}

impl Jinja {
    /// Compiles `text`.
    ///
    /// # Errors
    /// The reason why the text is no template.
    pub(super) fn new(text: String, special: Vec<(String, String)>) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MOST_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<String, _> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, text).map_err(|error| error.to_string())?;
        Ok(Self { environment, special })
    }

    /// Returns the text of `messages`; `prompts`: with the words after which the assistant answers.
    ///
    /// # Errors
    /// Messages that the template refuses, too many steps, too long a text; the reason.
    pub(super) fn render(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        prompts: bool,
    ) -> Result<String, String> {
        // Variables of a conversation take precedence over special tokens.
        let special = self.special.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str())));
        let own = input.variables.iter().map(|(name, value)| (name.clone(), Value::from_serialize(value)));
        let variables = Value::from_iter(special.chain(own));
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

/// The filter `tojson`, with Python's spaces.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    if let Some(indent) = indent.filter(|indent| *indent > MOST_INDENT) {
        let text = format!("tojson indents by at most {MOST_INDENT} spaces, not {}", grouped(indent as u64));
        return Err(Error::new(ErrorKind::InvalidOperation, text));
    }
    // Templates of Hugging Face may also pass these, which change nothing here.
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        options.get::<Option<Value>>(ignored)?;
    }
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut text = Bounded::default();
    let written = python_json(&serde_json::to_value(value).map_err(failed)?, indent, &mut text);
    written.map_err(failed)?;
    Ok(String::from_utf8_lossy(&text.bytes).into_owned())
}

/// Text within the limit.
#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    is_full: bool,
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
                .render(&[], &TemplateInput::default(), false)
                .unwrap_err();
            assert!(refused.contains(words), "{text}: {refused}");
        }
    }
}
