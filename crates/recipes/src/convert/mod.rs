//! Converts other trainers' files of arguments.
//!
//! Each key is converted, reported as unnecessary, or reported as having no equivalent: nothing is dropped
//! silently.

mod adapters;
mod arguments;
mod axolotl;
mod converter;
mod datasets;
mod defaults;
mod llama_factory;
mod preferences;
mod program;
mod sharding;
mod shared;
mod trl;
mod yaml;

use config::{ConfigError, Data, DataKind};
use serde_json::{Map, Value};

pub use converter::{Finding, Outcome};
pub use program::Program;

use crate::document::Document;
use crate::error::Result;
use crate::paths::Directories;
use converter::{Converter, Rule};

/// Result of converting another trainer's file.
#[derive(Debug)]
pub struct Conversion {
    /// The program to which the file belongs.
    pub program: Program,
    /// Keys that identified the program; empty if the user named it.
    pub recognised_by: Vec<&'static str>,
    /// The resulting configuration.
    pub document: Document,
    /// Every key of the file that is not "off", with how it was handled.
    pub findings: Vec<Finding>,
    /// Assignments made because the program's defaults differ.
    pub defaults: Vec<String>,
    /// Notes about files that do not exist here.
    pub notes: Vec<String>,
    /// Error of the resulting configuration, if it is invalid.
    pub error: Option<ConfigError>,
}

impl Conversion {
    /// Returns the keys without an equivalent.
    pub fn without_equivalent(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| matches!(finding.outcome, Outcome::NoEquivalent(_)))
    }
}

/// Converts a file's text, YAML or JSON; `name` is the file's name in messages. Without `program`, the
/// program is recognised by its keys.
///
/// # Errors
/// The text is neither YAML nor JSON, or its keys belong to no known program.
pub fn convert(
    text: &str,
    name: &str,
    program: Option<Program>,
    directories: &Directories,
) -> Result<Conversion> {
    let arguments = arguments::parse(text, name)?;
    let (program, recognised_by) = match program {
        Some(program) => (program, Vec::new()),
        None => Program::recognise(&arguments, name)?,
    };
    let mut converter = Converter {
        program,
        arguments: &arguments,
        directories,
        document: Document::new(title(program, name)),
        findings: Vec::new(),
        notes: Vec::new(),
        kind: None,
        has_adapters: false,
        as_they_stand: Vec::new(),
    };
    begin(&mut converter);
    convert_keys(&mut converter, &arguments);
    let mut defaults = set_defaults(&mut converter);
    finish(&mut converter);
    defaults.extend(datasets::set_packing(&mut converter));
    if program == Program::Trl {
        defaults.extend(trl::set_train_on(&mut converter));
    }
    let error = converter.check();
    let Converter { document, findings, notes, .. } = converter;
    Ok(Conversion { program, recognised_by, document, findings, defaults, notes, error })
}

fn title(program: Program, name: &str) -> Vec<String> {
    let name = system::quoted::shortened(name).replace(char::is_control, " ");
    vec![
        format!("Converted from {name}, a file of {}, by `plimsoll new --from`.", program.title()),
        "Every key is in docs/configuration.md; paths are relative to this file.".to_owned(),
    ]
}

fn begin(converter: &mut Converter<'_>) {
    match converter.program {
        Program::Axolotl => axolotl::begin(converter),
        Program::Trl => trl::begin(converter),
        Program::LlamaFactory => llama_factory::begin(converter),
    }
}

/// Converts each key: by a rule of its program, by a shared rule, or by the table of keys.
fn convert_keys(converter: &mut Converter<'_>, arguments: &Map<String, Value>) {
    let own = match converter.program {
        Program::Axolotl => axolotl::RULES,
        Program::Trl => trl::RULES,
        Program::LlamaFactory => llama_factory::RULES,
    };
    let find = |rules: &[(&str, Rule)], key: &str| {
        rules.iter().find(|(name, _)| *name == key).map(|(_, rule)| *rule)
    };
    for (key, value) in arguments.iter().filter(|(_, value)| !arguments::is_off(value)) {
        let outcome = match find(own, key).or_else(|| find(shared::RULES, key)) {
            Some(rule) => rule(converter, value),
            None => converter.by_table(key, value),
        };
        converter.add(key, value, outcome);
    }
}

fn set_defaults(converter: &mut Converter<'_>) -> Vec<String> {
    let (own, of_adapters, rate): (&[_], &[_], &[_]) = match (converter.program, converter.kind) {
        (Program::Axolotl, _) => (axolotl::DEFAULTS, &[], &[]),
        (Program::Trl, Some(DataKind::Preference)) => (trl::DEFAULTS, trl::ADAPTER_DEFAULTS, trl::PAIR_RATE),
        (Program::Trl, _) => (trl::DEFAULTS, trl::ADAPTER_DEFAULTS, trl::RATE),
        (Program::LlamaFactory, _) => (llama_factory::DEFAULTS, llama_factory::ADAPTER_DEFAULTS, &[]),
    };
    let mut set = defaults::set(converter, own);
    set.extend(defaults::set(converter, rate));
    set.extend(defaults::set(converter, defaults::SHARED));
    if converter.has_adapters {
        set.extend(defaults::set(converter, of_adapters));
    }
    if converter.program == Program::LlamaFactory {
        set.extend(llama_factory::set_alpha(converter));
    }
    set
}

/// Sets required keys that no argument specifies.
fn finish(converter: &mut Converter<'_>) {
    if converter.document.get(config::Train::micro_batch_size).is_none() {
        shared::batch(converter, &Value::Null);
    }
    if converter.document.get("model.from").is_none() {
        converter.notes.push("no argument names the model: set model.from".to_owned());
    }
    if converter.document.get(Data::kind).is_none() {
        datasets::set_kind(converter, DataKind::Chat);
    }
    if converter.document.get(Data::paths).is_none() {
        converter.notes.push("no argument names the data: set data.paths".to_owned());
    }
}
