//! Tests of the configuration through its public interface.

mod accepted;
mod adapters;
mod conversations;
mod files;
mod fine_tuning;
mod groups;
mod identity;
mod offload;
mod properties;
mod refused;
mod schedules;
mod tokenizer;
mod words;

use super::{ConfigError, RunConfig};
use keys::Key;
use nn::Families;
use std::path::Path;

/// The smallest valid configuration file.
const LEAST: &str = "[data]\npaths = [\"a.txt\"]\n";

/// Returns all model families, including the one for images.
fn families() -> &'static Families {
    vision::register().unwrap();
    Families::registered()
}

fn parse(text: &str, overrides: &[&str]) -> Result<RunConfig, ConfigError> {
    families();
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    RunConfig::parse(text, "quick.toml", Path::new("/base"), &overrides)
}

/// Returns all existing keys.
fn all_keys() -> Vec<Key> {
    super::table::table(families()).keys().to_vec()
}

fn refusal(text: &str, overrides: &[&str]) -> String {
    match parse(text, overrides) {
        Ok(_) => panic!("accepted: {text} {overrides:?}"),
        Err(error) => error.to_string(),
    }
}
