//! Defaults of other trainers that differ from the defaults here.

use keys::Value as Setting;

use super::converter::Converter;

/// A default of another trainer for a key here. It applies unless the file has one of the keys in `unless`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForeignDefault {
    key: &'static str,
    value: Literal,
    unless: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
enum Literal {
    Count(u64),
    Number(f64),
    Text(&'static str),
}

/// Defaults of Hugging Face's Trainer, common to all programs.
pub(super) const SHARED: &[ForeignDefault] = &[
    ForeignDefault::number("optim.weight_decay", 0.0, &["weight_decay"]),
    ForeignDefault::number("optim.beta2", 0.999, &["adam_beta2"]),
    ForeignDefault::count("optim.warmup_steps", 0, &["warmup_steps", "warmup_ratio"]),
];

impl ForeignDefault {
    pub(super) const fn count(key: &'static str, count: u64, unless: &'static [&'static str]) -> Self {
        Self { key, value: Literal::Count(count), unless }
    }

    pub(super) const fn number(key: &'static str, number: f64, unless: &'static [&'static str]) -> Self {
        Self { key, value: Literal::Number(number), unless }
    }

    pub(super) const fn text(key: &'static str, text: &'static str, unless: &'static [&'static str]) -> Self {
        Self { key, value: Literal::Text(text), unless }
    }
}

/// Sets the keys whose defaults differ. Returns their assignments.
pub(super) fn set(converter: &mut Converter<'_>, defaults: &[ForeignDefault]) -> Vec<String> {
    let comment = format!("{}'s default", converter.program.title());
    let mut set = Vec::new();
    for ForeignDefault { key, value, unless } in defaults {
        // A key in the file takes precedence, even if its value is null.
        let is_decided = unless.iter().any(|name| converter.arguments.contains_key(*name));
        if is_decided || converter.document.get(key).is_some() || !applies(converter, key) {
            continue;
        }
        let value: Setting = match value {
            Literal::Count(count) => (*count).into(),
            Literal::Number(number) => (*number).into(),
            Literal::Text(text) => (*text).into(),
        };
        converter.document.set(key, value, comment.as_str());
        set.push(converter.document.assignment(key));
    }
    set
}

/// Returns whether a key is valid for the configured optimizer.
fn applies(converter: &Converter<'_>, key: &str) -> bool {
    let kind = converter.document.get("optim.kind");
    key != "optim.beta2" || kind.is_none_or(|kind| *kind == Setting::from("adamw"))
}
