//! The registry of model families.

use std::sync::{LazyLock, OnceLock};

use crate::family::Family;
use crate::models::{GPT, LLAMA, MLP};

/// The program's families; fixed once they are first read.
static REGISTERED: OnceLock<Families> = OnceLock::new();

/// The model families of a program.
#[derive(Debug)]
pub struct Families {
    list: Vec<Family>,
    names: Vec<&'static str>,
    of_tokens: Vec<&'static str>,
    default: String,
}

impl Families {
    /// Creates a registry of `list`, whose first family is the default of `model.kind`.
    #[must_use]
    pub fn new(list: Vec<Family>) -> Self {
        let names: Vec<_> = list.iter().map(Family::name).collect();
        let of_tokens = list.iter().filter(|family| family.takes_tokens()).map(Family::name).collect();
        let default = format!("\"{}\"", names.first().copied().unwrap_or_default());
        Self { list, names, of_tokens, default }
    }

    /// The families of this crate.
    #[must_use]
    pub fn standard() -> &'static Self {
        static STANDARD: LazyLock<Families> = LazyLock::new(|| Families::new(vec![GPT, LLAMA, MLP]));
        &STANDARD
    }

    /// The families of this program: this crate's, followed by those passed to [`Families::register`].
    #[must_use]
    pub fn registered() -> &'static Self {
        REGISTERED.get_or_init(|| Families::new(Self::standard().list.clone()))
    }

    /// Adds families to the program's registry. Must be called before the first configuration is read.
    ///
    /// # Errors
    /// A family of this name exists, or families were read already.
    pub fn register(own: impl IntoIterator<Item = Family>) -> std::result::Result<(), String> {
        let mut all = Self::standard().list.clone();
        for family in own {
            let name = family.name();
            if all.iter().any(|other| other.name() == name) {
                return Err(format!("two families of models are called \"{name}\""));
            }
            all.push(family);
        }
        let late = |_| "families of models are registered before the first configuration is read".to_owned();
        REGISTERED.set(Families::new(all)).map_err(late)
    }

    /// All families.
    #[must_use]
    pub fn list(&self) -> &[Family] {
        &self.list
    }

    /// The families' names.
    #[must_use]
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// The names of families whose inputs are tokens.
    #[must_use]
    pub fn names_of_tokens(&self) -> &[&'static str] {
        &self.of_tokens
    }

    /// Name of the default family as a TOML string.
    #[must_use]
    pub fn default_literal(&self) -> &str {
        &self.default
    }

    /// Returns the family with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Family> {
        self.list.iter().find(|family| family.name() == name)
    }
}
