//! The parameters of a model that are trained: all of them, or those that no pattern freezes.

use glob::Pattern;

/// Decides which parameters of a model are trained. The default trains all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    frozen: Vec<Pattern>,
}

impl Tuning {
    /// Freezes the parameters whose names one of the globs `freeze` matches. Errors: a text that is no glob,
    /// in a sentence.
    pub fn new(freeze: &[String]) -> Result<Self, String> {
        let pattern = |glob: &String| {
            Pattern::new(glob).map_err(|error| format!("\"{glob}\" is no glob: {}", error.msg))
        };
        Ok(Tuning { frozen: freeze.iter().map(pattern).collect::<Result<_, _>>()? })
    }

    /// Returns whether the parameter `name` is trained.
    #[must_use]
    pub fn trains(&self, name: &str) -> bool {
        !self.frozen.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns whether all parameters are trained.
    #[must_use]
    pub fn trains_all(&self) -> bool {
        self.frozen.is_empty()
    }

    /// Checks that every glob matches one of `names`, those of all parameters, and that something is left to
    /// train. Errors: a sentence.
    pub fn check<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
        let idle = |pattern: &&Pattern| !names.clone().any(|name| pattern.matches(name));
        if let Some(pattern) = self.frozen.iter().find(idle) {
            let text = pattern.as_str();
            let near = keys::nearest(&text.replace(['*', '?'], ""), names.clone());
            let hint = near.or(names.clone().next()).unwrap_or("nothing");
            return Err(format!("\"{text}\" matches no parameter, such as {hint}"));
        }
        match names.clone().any(|name| self.trains(name)) {
            true => Ok(()),
            false => Err("every parameter is frozen, and nothing is left to train".to_owned()),
        }
    }
}
