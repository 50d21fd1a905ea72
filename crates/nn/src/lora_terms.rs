//! Ranks and scales of adapters, which may differ between modules.

use system::quoted::shortened;

use crate::targets::Target;

system::names! {
    /// Formula of an adapter's scale.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum LoraScaling {
        /// `alpha / rank`.
        #[default]
        Rank = "alpha/rank",
        /// `alpha / √rank`, which keeps the size of updates at high ranks (Kalajdzievski, *A Rank
        /// Stabilization Scaling Factor for Fine-Tuning with LoRA*, 2023).
        Stabilised = "rslora",
    }
}

impl LoraScaling {
    /// Returns the factor for an adapter of rank `r` with the numerator `alpha`.
    pub(crate) fn factor(self, alpha: f64, r: usize) -> f32 {
        let divisor = match self {
            LoraScaling::Rank => r as f64,
            LoraScaling::Stabilised => (r as f64).sqrt(),
        };
        (alpha / divisor) as f32
    }
}

/// Values for the modules that match patterns, which are names, ends of names, globs or regular expressions.
/// The first pattern that matches a module determines its value, as in PEFT.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Patterns<T>(Vec<(Target, T)>);

impl<T> Default for Patterns<T> {
    fn default() -> Self {
        Patterns(Vec::new())
    }
}

impl<T: Copy> Patterns<T> {
    /// Parses texts such as `q_proj=8`. `read` parses the value, and `takes` describes it in messages.
    ///
    /// # Errors
    /// A message, if a text has another form.
    pub(crate) fn parse(
        texts: &[String],
        takes: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Self, String> {
        let pattern = |text: &String| {
            let parts = text.rsplit_once('=').filter(|(name, _)| !name.trim().is_empty());
            let value = parts.and_then(|(name, value)| Some((name.trim(), read(value.trim())?)));
            let (name, value) = value.ok_or_else(|| {
                format!("\"{}\" is no name of modules with {takes}, such as q_proj=8", shortened(text))
            })?;
            let target = Target::new(name);
            target.mistake().map_or(Ok((target, value)), Err)
        };
        texts.iter().map(pattern).collect::<Result<_, _>>().map(Patterns)
    }

    /// Returns the value of the first pattern that matches a module, if any.
    pub(crate) fn value(&self, module: &str) -> Option<T> {
        self.0.iter().find(|(target, _)| target.matches(module)).map(|(_, value)| *value)
    }

    /// Checks that every pattern matches one of `modules`, the modules with adapters. `layers` are all
    /// modules that could have one.
    ///
    /// # Errors
    /// A message, if a pattern matches none.
    pub(crate) fn check<'a>(
        &self,
        modules: impl Iterator<Item = &'a str> + Clone,
        layers: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), String> {
        self.0.iter().try_for_each(|(target, _)| target.check(modules.clone(), layers.clone()))
    }
}

/// Rank and scale of the adapters of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Term {
    /// Rank, the number of rows of A and of columns of B.
    pub(crate) r: usize,
    /// Scale of the adapter's term.
    pub(crate) scale: f32,
}

#[cfg(test)]
mod tests {
    use super::{LoraScaling, Patterns};

    #[test]
    fn factors_divide_by_the_rank_or_by_its_root() {
        for (scaling, alpha, r, factor) in [
            (LoraScaling::Rank, 32.0, 16, 2.0),
            (LoraScaling::Rank, 1.0, 3, (1.0f64 / 3.0) as f32),
            (LoraScaling::Stabilised, 32.0, 16, 8.0),
            (LoraScaling::Stabilised, 1.0, 3, (1.0f64 / 3.0f64.sqrt()) as f32),
        ] {
            assert_eq!(scaling.factor(alpha, r), factor, "{} {alpha} {r}", scaling.name());
        }
    }

    fn ranks(texts: &[&str]) -> Result<Patterns<usize>, String> {
        let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
        Patterns::parse(&texts, "a rank", |text| text.parse().ok().filter(|r| *r > 0))
    }

    #[test]
    fn the_first_pattern_of_a_module_decides() {
        let patterns = ranks(&["*.0.*=8", "q_proj = 4", "regex:.*\\.(k|v)_proj=2"]).unwrap();
        for (module, expected) in [
            ("model.layers.0.self_attn.q_proj", Some(8)),
            ("model.layers.1.self_attn.q_proj", Some(4)),
            ("model.layers.1.self_attn.xq_proj", None),
            ("model.layers.1.self_attn.v_proj", Some(2)),
            ("lm_head", None),
        ] {
            assert_eq!(patterns.value(module), expected, "{module}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, expected) in [
            ("q_proj", "\"q_proj\" is no name of modules with a rank, such as q_proj=8"),
            ("q_proj=0", "\"q_proj=0\" is no name of modules with a rank"),
            ("=4", "\"=4\" is no name of modules with a rank"),
            ("regex:(=4", "\"(\" is no regular expression: "),
        ] {
            let refused = ranks(&[text]).unwrap_err();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
