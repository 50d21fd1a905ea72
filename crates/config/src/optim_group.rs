//! `[[optim.groups]]`: parameters with settings of their own.

use glob::Pattern;
use keys::{Interval, Reading, Takes, Value, nearest, read_in_table, read_tables, unknown_in_table};

use crate::choices::OptimKind;

/// A group of parameters with its own settings of the optimizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimGroup {
    /// Name in logs and metrics; by default, the first glob.
    name: Option<String>,
    /// Globs of the names of the group's parameters.
    globs: Vec<Pattern>,
    /// Update rule; `None` for `optim.kind`.
    pub kind: Option<OptimKind>,
    /// Factor of the learning rate; `None` for 1.
    pub learning_rate: Option<f64>,
    /// Weight decay of all parameters of the group; `None` for `optim.weight_decay` of matrices.
    pub weight_decay: Option<f64>,
    /// First decay rate of the rule; `None` for `optim.beta1`.
    pub beta1: Option<f64>,
    /// Second decay rate of the rule; `None` for `optim.beta2`.
    pub beta2: Option<f64>,
}

const NAME: &str = "name";
const MATCH: &str = "match";
const KIND: &str = "kind";
const LEARNING_RATE: &str = "learning_rate";
const WEIGHT_DECAY: &str = "weight_decay";
const BETA1: &str = "beta1";
const BETA2: &str = "beta2";

impl OptimGroup {
    pub(crate) const KEYS: &'static [&'static str] =
        &[MATCH, NAME, KIND, LEARNING_RATE, WEIGHT_DECAY, BETA1, BETA2];

    /// Returns the group's name in logs and metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        let first = || self.globs.first().map_or("", Pattern::as_str);
        self.name.as_deref().unwrap_or_else(first)
    }

    /// Returns whether the group's globs match the parameter `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.globs.iter().any(|glob| glob.matches(name))
    }

    /// Returns the first glob that matches none of `names`.
    fn unmatched<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        let idle = |glob: &&Pattern| !names.clone().any(|name| glob.matches(name));
        self.globs.iter().find(idle).map(Pattern::as_str)
    }

    pub(crate) fn read_all(value: &Value, _: &Takes) -> Reading<Vec<Self>> {
        read_tables(value, "group", Self::read)
    }

    /// Reads a group.
    ///
    /// # Errors
    /// A sentence about a key that is unknown or has another value, or globs that are missing.
    fn read(entries: &[(String, Value)]) -> Result<Self, String> {
        let mut group = Self::default();
        for (key, value) in entries {
            match key.as_str() {
                MATCH => group.globs = globs(value)?,
                NAME => group.name = Some(group_name(value)?),
                KIND => group.kind = Some(kind(value)?),
                LEARNING_RATE => group.learning_rate = Some(number(key, value, Interval::Positive)?),
                WEIGHT_DECAY => group.weight_decay = Some(number(key, value, Interval::NotNegative)?),
                BETA1 => group.beta1 = Some(number(key, value, Interval::Fraction)?),
                BETA2 => group.beta2 = Some(number(key, value, Interval::Fraction)?),
                _ => return Err(unknown_in_table(key, Self::KEYS)),
            }
        }
        match group.globs.is_empty() {
            true => Err("it has no match, the globs of its parameters' names".to_owned()),
            false => Ok(group),
        }
    }

    fn value(&self) -> Value {
        let globs: Vec<_> = self.globs.iter().map(Pattern::as_str).collect();
        let entries = [
            (MATCH, Some(globs.as_slice().into())),
            (NAME, self.name.clone().map(Value::from)),
            (KIND, self.kind.map(|kind| kind.name().into())),
            (LEARNING_RATE, self.learning_rate.map(Value::from)),
            (WEIGHT_DECAY, self.weight_decay.map(Value::from)),
            (BETA1, self.beta1.map(Value::from)),
            (BETA2, self.beta2.map(Value::from)),
        ];
        let entry = |(key, value): (&str, Option<Value>)| Some((key.to_owned(), value?));
        Value::Table(entries.into_iter().filter_map(entry).collect())
    }

    /// Returns the group's rule; `own` is `optim.kind`.
    #[must_use]
    pub fn kind_or(&self, own: OptimKind) -> OptimKind {
        self.kind.unwrap_or(own)
    }
}

/// Checks that every glob of `groups` matches a trained parameter, and that every group has one. `names` has
/// the names of the whole model's parameters, and whether each is trained.
///
/// # Errors
/// A sentence about the first group without a match.
pub(crate) fn check_matches<'a>(
    groups: &[OptimGroup],
    names: impl Iterator<Item = (&'a str, bool)> + Clone,
) -> Result<(), String> {
    let all = || names.clone().map(|(name, _)| name);
    let trained = || names.clone().filter_map(|(name, is_trained)| is_trained.then_some(name));
    for (index, group) in groups.iter().enumerate() {
        let number = index + 1;
        if let Some(glob) = group.unmatched(trained()) {
            let is_frozen = group.unmatched(all()) != Some(glob);
            let which = if is_frozen { "trained parameter" } else { "parameter" };
            let near = nearest(&glob.replace(['*', '?'], ""), trained());
            let hint = near.or_else(|| trained().next()).unwrap_or("nothing");
            return Err(format!("group {number}: \"{glob}\" matches no {which}, such as {hint}"));
        }
        let is_left =
            |name: &str| group.matches(name) && !groups[..index].iter().any(|earlier| earlier.matches(name));
        if !trained().any(is_left) {
            let reason = "groups before it match all of its parameters, and the first match counts";
            return Err(format!("group {number}: {reason}"));
        }
    }
    Ok(())
}

#[allow(clippy::ptr_arg, reason = "a row writes a reference to its field's type")]
pub(crate) fn value(groups: &Vec<OptimGroup>) -> Value {
    Value::List(groups.iter().map(OptimGroup::value).collect())
}

fn globs(value: &Value) -> Result<Vec<Pattern>, String> {
    let takes = Takes::TextOrTexts;
    let texts = read_in_table(MATCH, value, &takes, takes.read_texts(value))?;
    let pattern = |glob: &String| {
        Pattern::new(glob).map_err(|error| format!("{MATCH}: \"{glob}\" is no glob: {}", error.msg))
    };
    texts.iter().map(pattern).collect()
}

fn group_name(value: &Value) -> Result<String, String> {
    match value {
        Value::Text(name) if !name.trim().is_empty() => Ok(name.clone()),
        _ => Err(format!("{NAME} = {value} is not a name")),
    }
}

fn kind(value: &Value) -> Result<OptimKind, String> {
    let names: Vec<_> = OptimKind::ALL.iter().map(|kind| kind.name()).collect();
    let named = |text: &String| OptimKind::ALL.iter().copied().find(|kind| kind.name() == text);
    match value {
        Value::Text(text) => named(text),
        _ => None,
    }
    .ok_or_else(|| format!("{KIND} = {value} is not one of {}", names.join(", ")))
}

fn number(name: &str, value: &Value, interval: Interval) -> Result<f64, String> {
    let takes = Takes::Number(interval);
    read_in_table(name, value, &takes, takes.read_number(value))
}
