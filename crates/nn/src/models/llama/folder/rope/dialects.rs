//! The two formats of rotary frequencies: `rope_scaling` next to `rope_theta`, and `rope_parameters`, which
//! contains both. If a folder uses both formats, they must agree.

use serde_json::{Map, Value as Json};
use system::quoted::shortened;

use crate::hugging_face::FolderConfig;
use crate::hugging_face::readers::ROPE;
use crate::models::llama::mixers::{FULL, SLIDING};

const PARAMETERS: &str = "rope_parameters";
const SCALING: &str = "rope_scaling";
/// Settings that may also be next to the object instead of inside.
const BESIDE: [&str; 3] = ["rope_theta", "partial_rotary_factor", "original_max_position_embeddings"];

/// An object of settings with its name.
type Named<'a> = (&'a str, FolderConfig);

/// Returns the settings for all layers, by their names in `rope_parameters`.
///
/// # Errors
/// Settings depend on the type of layer, are unknown, or disagree.
pub(crate) fn flat(config: &FolderConfig) -> Result<FolderConfig, String> {
    let objects = [PARAMETERS, SCALING].into_iter().map(|name| Ok((name, config.object(name)?)));
    let objects: Vec<_> = objects.collect::<Result<_, String>>()?;
    let objects: Vec<Named<'_>> = objects.into_iter().filter_map(|(name, own)| Some((name, own?))).collect();
    let nested = objects.iter().find(|(_, object)| is_nested(object));
    if let Some((name, _)) = nested {
        return Err(format!("{name} by type of layer is not supported: one for all layers is"));
    }
    merged(config, objects, &BESIDE.map(|name| (name, name)))
}

/// Returns the settings for the layers of one type; older files store their base as `theta`.
///
/// # Errors
/// Errors of [`flat`], or the settings do not depend on the type of layer.
pub(super) fn of_layers(config: &FolderConfig, layers: &str, theta: &str) -> Result<FolderConfig, String> {
    let mut objects = Vec::new();
    if let Some(parameters) = config.object(PARAMETERS)? {
        let is_other = |(name, value): &(&str, &Json)| ![FULL, SLIDING].contains(name) && !value.is_null();
        if let Some((name, _)) = parameters.entries().find(is_other) {
            return Err(format!("{PARAMETERS} has {name}, and this model has them by type of layer"));
        }
        objects.extend(parameters.object(layers)?.map(|own| (layers, own)));
    }
    if let Some(scaling) = config.object(SCALING)?.filter(|_| layers == FULL) {
        if is_nested(&scaling) {
            return Err(format!("{SCALING} by type of layer is not supported: {PARAMETERS} is"));
        }
        objects.push((SCALING, scaling));
    }
    merged(config, objects, &[(theta, BESIDE[0])])
}

fn is_nested(object: &FolderConfig) -> bool {
    [FULL, SLIDING].into_iter().any(|name| object.has(name))
}

/// Merges the settings of `objects`, which must agree, with settings next to them. `beside` lists the name of
/// each in the file and inside an object.
fn merged(
    config: &FolderConfig,
    objects: Vec<Named<'_>>,
    beside: &[(&str, &str)],
) -> Result<FolderConfig, String> {
    let mut whole: Option<(&str, Map<String, Json>)> = None;
    for (name, object) in objects {
        if object.entries().all(|(_, value)| value.is_null()) {
            continue;
        }
        object.check(&ROPE)?;
        let own = completed(config, (name, &object), beside)?;
        if let Some((other, before)) = &whole {
            let keys = before.keys().chain(own.keys());
            if let Some(key) = keys.into_iter().find(|key| !equal(before.get(*key), own.get(*key))) {
                return Err(format!("{other} and {name} have other values of {key}: keep one of them"));
            }
        }
        whole = Some((name, own));
    }
    match whole {
        Some((_, settings)) => Ok(FolderConfig::from_settings(settings)),
        None => completed(config, ("", &FolderConfig::from_settings(Map::new())), beside)
            .map(FolderConfig::from_settings),
    }
}

/// Completes an object: sets its kind, drops null settings, and adds settings next to it.
fn completed(
    config: &FolderConfig,
    (name, object): (&str, &FolderConfig),
    beside: &[(&str, &str)],
) -> Result<Map<String, Json>, String> {
    let mut own = Map::new();
    for (key, value) in object.entries().filter(|(_, value)| !value.is_null()) {
        // The former name of `rope_type`.
        let key = if key == "type" { "rope_type" } else { key };
        match own.insert(key.to_owned(), value.clone()) {
            Some(before) if before != *value => {
                let [before, value] = [&before, value].map(shown);
                return Err(format!("{name} has {key} = {before} and {value}: keep one of them"));
            }
            _ => {}
        }
    }
    own.entry("rope_type").or_insert_with(|| "default".into());
    for (outer, inner) in beside {
        let Some(value) = config.value(outer) else { continue };
        match own.get(*inner) {
            None => drop(own.insert((*inner).to_owned(), value.clone())),
            Some(there) if equal(Some(there), Some(value)) => {}
            Some(there) => {
                let [value, there] = [value, there].map(shown);
                return Err(format!(
                    "{outer} = {value} and {inner} = {there} of {name} differ: keep one of them"
                ));
            }
        }
    }
    Ok(own)
}

/// Formats a value for a message, shortened.
fn shown(value: &Json) -> String {
    shortened(&value.to_string()).into_owned()
}

/// Returns whether two settings are equal, comparing numbers by value.
fn equal(one: Option<&Json>, other: Option<&Json>) -> bool {
    match (one.and_then(Json::as_f64), other.and_then(Json::as_f64)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}
