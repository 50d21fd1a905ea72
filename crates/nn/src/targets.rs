//! Names of modules that have an adapter, in PEFT's syntax or as globs.

use fancy_regex::Regex;
use glob::Pattern;
use system::quoted::shortened;

/// The target that matches every linear layer of a model's blocks, as in PEFT.
pub(crate) const ALL: &str = "all-linear";
/// Prefix of a regular expression.
pub(crate) const REGEX: &str = "regex:";

/// A target of adapters: a name, glob or regular expression of modules.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Every linear layer of a model's blocks.
    All,
    /// A module's name, the end of one, or a glob.
    Name(Option<Pattern>),
    /// A regular expression for the complete name.
    Regex(Box<Regex>),
    /// An invalid regular expression, and the reason.
    Invalid(String),
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Target {
    /// Parses a target. An invalid regular expression matches nothing; [`Target::check`] returns the reason.
    pub(crate) fn new(text: &str) -> Self {
        let kind = match text.strip_prefix(REGEX) {
            // `\A` and `\z` make it match the complete name, like Python's `re.fullmatch`.
            Some(pattern) => match Regex::new(&format!("\\A(?:{pattern})\\z")) {
                Ok(regex) => Kind::Regex(Box::new(regex)),
                Err(error) => Kind::Invalid(error.to_string()),
            },
            None if text == ALL => Kind::All,
            None => Kind::Name(Pattern::new(text).ok()),
        };
        Target { text: text.to_owned(), kind }
    }

    /// The target's text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the target matches a module.
    pub(crate) fn matches(&self, module: &str) -> bool {
        self.try_matches(module).unwrap_or(false)
    }

    /// Returns why the target is not a valid regular expression; `None` if it is valid or no regular
    /// expression.
    pub(crate) fn mistake(&self) -> Option<String> {
        match &self.kind {
            Kind::Invalid(reason) => Some(self.no_regex(reason)),
            _ => None,
        }
    }

    fn no_regex(&self, reason: &str) -> String {
        let text = self.text.strip_prefix(REGEX).unwrap_or(&self.text);
        format!("\"{}\" is no regular expression: {}", shortened(text), shortened(reason))
    }

    /// Checks that the target matches one of `modules`. `layers` are the possible names, for suggestions.
    ///
    /// # Errors
    /// A description of the problem.
    pub(crate) fn check<'a>(
        &self,
        mut modules: impl Iterator<Item = &'a str>,
        layers: impl Iterator<Item = &'a str>,
    ) -> Result<(), String> {
        self.mistake().map_or(Ok(()), Err)?;
        let found = modules.try_fold(false, |found, module| Ok(found || self.try_matches(module)?));
        if found.map_err(|reason: String| self.no_regex(&reason))? {
            return Ok(());
        }
        let text = shortened(&self.text);
        let near = keys::nearest(&self.text, layers.filter(|layer| *layer != self.text));
        let near = near.map(|near| format!(", such as {near}"));
        let looks_like_regex =
            !self.text.starts_with(REGEX) && self.text.contains(['\\', '(', '|', '^', '$']);
        let hint = match near {
            _ if looks_like_regex => format!("; a regular expression begins with {REGEX}"),
            Some(near) => near,
            None => String::new(),
        };
        Err(format!("\"{text}\" names no linear layer of the model{hint}"))
    }

    /// Returns whether the target matches a module.
    ///
    /// # Errors
    /// The regular expression takes too many steps.
    fn try_matches(&self, module: &str) -> Result<bool, String> {
        Ok(match &self.kind {
            Kind::All => module.split('.').any(|part| part.parse::<usize>().is_ok()),
            Kind::Name(glob) => {
                let is_end = || module.strip_suffix(&self.text).is_some_and(|rest| rest.ends_with('.'));
                module == self.text || is_end() || glob.as_ref().is_some_and(|glob| glob.matches(module))
            }
            Kind::Regex(regex) => regex.is_match(module).map_err(|error| error.to_string())?,
            Kind::Invalid(_) => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    const MODULES: [&str; 6] = [
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.v_proj",
        "model.layers.0.mlp.experts.1.up_proj",
        "model.layers.10.self_attn.q_proj",
        "model.layers.10.mlp.up_proj",
        "lm_head",
    ];

    fn named(target: &str) -> Vec<usize> {
        let target = Target::new(target);
        (0..MODULES.len()).filter(|index| target.matches(MODULES[*index])).collect()
    }

    /// PEFT matches a text of `target_modules` with Python's `re.fullmatch`.
    #[test]
    fn targets_are_names_ends_globs_or_regular_expressions() {
        for (target, expected) in [
            ("q_proj", &[0, 3][..]),
            ("self_attn.q_proj", &[0, 3]),
            ("proj", &[]),
            ("model.layers.0.self_attn.q_proj", &[0]),
            ("lm_head", &[5]),
            ("all-linear", &[0, 1, 2, 3, 4]),
            ("*.mlp.*", &[2, 4]),
            ("regex:q_proj", &[]),
            ("regex:lm_head", &[5]),
            (r"regex:.*\.self_attn\.(q_proj|v_proj)$", &[0, 1, 3]),
            (r"regex:^model\.layers\.\d\..*", &[0, 1, 2]),
            (r"regex:(?!.*experts).*(?:up|v)_proj", &[1, 4]),
            (r"regex:.*q_proj|lm_head", &[0, 3, 5]),
        ] {
            assert_eq!(named(target), expected, "{target}");
        }
    }

    #[test]
    fn wrong_targets_are_refused_in_a_short_sentence() {
        for (target, expected) in [
            ("qproj", "\"qproj\" names no linear layer of the model, such as q_proj"),
            (r"regex:.*\.k_proj", "names no linear layer of the model"),
            (r".*\.q_proj", "; a regular expression begins with regex:"),
            ("regex:(q_proj", "\"(q_proj\" is no regular expression: "),
            (r"regex:(?:(a|a|.)*)*(?=\1)b", "is no regular expression: "),
            (&"x".repeat(99_999), "… and 99,879 more characters\" names no linear layer"),
        ] {
            let refused = Target::new(target).check(MODULES.into_iter(), ["q_proj", "up_proj"].into_iter());
            let refused = refused.unwrap_err();
            assert!(refused.contains(expected) && refused.len() < 500, "{target}: {refused}");
        }
    }
}
