//! Rotary frequencies in a `config.json`: `rope_theta` and `rope_scaling`, or `rope_parameters` with both,
//! for all layers or per type of layer.

pub(super) mod dialects;

use serde_json::{Map, Value as Json, json};
use system::quoted::shortened;

use super::family::{FolderFamily, Keys, Settings};
use crate::hugging_face::FolderConfig;
use crate::models::llama::mixers::{FULL, SLIDING};
use crate::models::llama::sizes::{LlamaSizes, RopeScaling};

/// Names of the settings for one set of frequencies.
pub(super) const FLAT_NAMES: &[&str] = &[
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "original_max_position_embeddings",
];
/// Names of the settings for frequencies per type of layer.
pub(super) const LAYER_NAMES: &[&str] =
    &["rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"];
/// Phi-3's former names of LongRoPE scaling.
const FORMER_LONGROPE: [&str; 2] = ["su", "yarn"];

/// Kind of frequencies that only a share of the pairs uses.
const PROPORTIONAL: &str = "proportional";
/// Growth of queries with their position.
const GROWTH: &str = "llama_4_scaling_beta";

/// Settings that any kind of scaling may have.
const OF_ALL_KINDS: [&str; 7] = [
    "rope_type",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "max_position_embeddings",
    "finetuned",
    GROWTH,
];

/// Reads frequencies for all layers; by default whole heads rotate.
pub(super) fn read_flat(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    read_part(config, family, 1.0)
}

/// Reads frequencies for all layers; by default half of each head rotates.
pub(super) fn read_half(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    read_part(config, family, 0.5)
}

/// Reads frequencies for all layers; by default a quarter of each head rotates.
pub(super) fn read_quarter(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    read_part(config, family, 0.25)
}

/// Reads frequencies for all layers, and rejects heads that rotate in part.
pub(super) fn read_whole(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    match dialects::flat(config)?.number("partial_rotary_factor")?.filter(|part| *part != 1.0) {
        Some(part) => Err(format!("partial_rotary_factor = {part} is not supported; supported: 1")),
        None => read_flat(config, family),
    }
}

/// Reads frequencies for all layers. With "dynamic" and `alpha`, as in Hunyuan, the base is
/// θ · alpha^(d/(d − 2)) for heads of d columns, and other settings have no effect.
pub(super) fn read_alpha(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    let settings = dialects::flat(config)?;
    let alpha = settings.number("alpha")?.filter(|alpha| *alpha != 0.0);
    match alpha.filter(|_| kind(&settings).is_ok_and(|kind| kind == "dynamic")) {
        Some(alpha) => {
            let theta = settings.number("rope_theta")?.unwrap_or(family.absent.theta[0]);
            let head = family.head_width(config)? as f64;
            let theta = theta * libm::pow(alpha, head / (head - 2.0));
            Ok(vec![(LlamaSizes::rope_theta, theta.into())])
        }
        None => read_whole(config, family),
    }
}

fn read_part(config: &FolderConfig, family: &FolderFamily, absent: f64) -> Result<Keys, String> {
    let settings = dialects::flat(config)?;
    let theta = settings.number("rope_theta")?.unwrap_or(family.absent.theta[0]);
    let mut keys: Keys = vec![(LlamaSizes::rope_theta, theta.into())];
    let part = settings.number("partial_rotary_factor")?.unwrap_or(absent);
    if part != 1.0 {
        let head = family.head_width(config)?;
        keys.push((LlamaSizes::rope_width, ((head as f64 * part) as usize).into()));
    }
    keys.extend(scaling(config, family, &settings)?);
    Ok(keys)
}

/// Reads the frequencies of layers without a window, and the base of layers with one.
pub(super) fn read_by_layer(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    let [absent, absent_in_window] = family.absent.theta;
    // OLMo has one base, Gemma two.
    let former = if absent == absent_in_window { "rope_theta" } else { "rope_local_base_freq" };
    let full = dialects::of_layers(config, FULL, "rope_theta")?;
    let sliding = dialects::of_layers(config, SLIDING, former)?;
    let mut keys: Keys = vec![
        (LlamaSizes::rope_theta, full.number("rope_theta")?.unwrap_or(absent).into()),
        (LlamaSizes::window_rope_theta, sliding.number("rope_theta")?.unwrap_or(absent_in_window).into()),
        (LlamaSizes::window_rope_scaled, false.into()),
    ];
    if let Some(kind) = Some(kind(&sliding)?).filter(|kind| *kind != "default") {
        let kind = shortened(kind);
        return Err(format!("rope_type = \"{kind}\" of {SLIDING} is not supported; supported: \"default\""));
    }
    for (layers, settings) in [(FULL, &full), (SLIDING, &sliding)] {
        if let Some(part) = settings.number("partial_rotary_factor")?.filter(|part| *part != 1.0) {
            return Err(format!("partial_rotary_factor = {part} of {layers} is not supported; supported: 1"));
        }
    }
    keys.extend(scaling(config, family, &full)?);
    Ok(keys)
}

/// Reads the frequencies of layers with and without a window; the latter may use only a share of the pairs.
pub(super) fn read_share(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    if config.value("rope_scaling").is_some() {
        return Err("rope_scaling is not supported here: rope_parameters is".to_owned());
    }
    let [absent, absent_in_window] = family.absent.theta;
    let full = match config.value("rope_parameters") {
        Some(_) => dialects::of_layers(config, FULL, "rope_theta")?,
        None => FolderConfig::from_settings(object([
            ("partial_rotary_factor", json!(0.25)),
            ("rope_type", json!(PROPORTIONAL)),
        ])),
    };
    let sliding = dialects::of_layers(config, SLIDING, "rope_local_base_freq")?;
    if let Some(kind) = Some(kind(&sliding)?).filter(|kind| *kind != "default") {
        let kind = shortened(kind);
        return Err(format!("rope_type = \"{kind}\" of {SLIDING} is not supported; supported: \"default\""));
    }
    let is_share = kind(&full)? == PROPORTIONAL;
    for (layers, settings) in [(FULL, &full), (SLIDING, &sliding)] {
        let part = settings.number("partial_rotary_factor")?.filter(|part| *part != 1.0);
        if let Some(part) = part.filter(|_| layers == SLIDING || !is_share) {
            return Err(format!("partial_rotary_factor = {part} of {layers} is not supported; supported: 1"));
        }
    }
    let mut keys: Keys = vec![
        (LlamaSizes::rope_theta, full.number("rope_theta")?.unwrap_or(absent).into()),
        (LlamaSizes::window_rope_theta, sliding.number("rope_theta")?.unwrap_or(absent_in_window).into()),
        (LlamaSizes::window_rope_scaled, false.into()),
    ];
    if !is_share {
        keys.extend(scaling(config, family, &full)?);
        return Ok(keys);
    }
    check_kind(PROPORTIONAL, &full)?;
    keys.push((LlamaSizes::rope_share, full.number("partial_rotary_factor")?.unwrap_or(1.0).into()));
    if let Some(factor) = full.number("factor")?.filter(|factor| *factor != 1.0) {
        keys.push((LlamaSizes::rope_scaling, RopeScaling::Linear.name().into()));
        keys.push((LlamaSizes::rope_factor, factor.into()));
    }
    Ok(keys)
}

/// Writes frequencies per type of layer, with the share of pairs in layers without a window.
pub(super) fn write_share(sizes: &LlamaSizes) -> Settings {
    let mut full = match sizes.rope_scaling {
        RopeScaling::None => object([("rope_type", json!(PROPORTIONAL))]),
        RopeScaling::Linear => {
            object([("factor", json!(sizes.rope_factor)), ("rope_type", json!(PROPORTIONAL))])
        }
        _ => return write_by_layer(sizes),
    };
    full.insert("partial_rotary_factor".to_owned(), json!(sizes.rope_share));
    full.insert("rope_theta".to_owned(), json!(sizes.rope_theta));
    let sliding = object([("rope_theta", json!(sizes.window_rope_theta)), ("rope_type", json!("default"))]);
    vec![("rope_parameters", json!({ FULL: full, SLIDING: sliding }))]
}

fn kind(scaling: &FolderConfig) -> Result<&str, String> {
    Ok(scaling.text("rope_type")?.unwrap_or("default"))
}

/// Translates one object of settings.
fn scaling(config: &FolderConfig, family: &FolderFamily, scaling: &FolderConfig) -> Result<Keys, String> {
    if let Some(growth) = scaling.number(GROWTH)?.filter(|growth| *growth != 0.0) {
        return Err(format!(
            "{GROWTH} = {growth} is not supported with model_type = \"{}\"",
            family.model_type
        ));
    }
    kinds(config, family, scaling)
}

/// Reads frequencies for all layers, and the growth of queries.
pub(super) fn read_growing(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    if ["rope_parameters", "rope_scaling"].iter().all(|name| config.value(name).is_none()) {
        let plain = FolderConfig::from_settings(object([
            ("factor", json!(16.0)),
            ("llama_4_scaling_beta", json!(0.1)),
            ("mscale", json!(1.0)),
            ("mscale_all_dim", json!(1.0)),
            ("original_max_position_embeddings", json!(16_384)),
            ("rope_type", json!("yarn")),
        ]));
        return growing(config, family, &plain, 1_000_000.0);
    }
    let settings = dialects::flat(config)?;
    if let Some(part) = settings.number("partial_rotary_factor")?.filter(|part| *part != 1.0) {
        return Err(format!("partial_rotary_factor = {part} is not supported; supported: 1"));
    }
    growing(config, family, &settings, family.absent.theta[0])
}

fn growing(
    config: &FolderConfig,
    family: &FolderFamily,
    settings: &FolderConfig,
    theta: f64,
) -> Result<Keys, String> {
    let growth = settings.number(GROWTH)?.unwrap_or(0.0);
    let theta = settings.number("rope_theta")?.unwrap_or(theta);
    let mut keys: Keys =
        vec![(LlamaSizes::rope_theta, theta.into()), (LlamaSizes::query_growth, growth.into())];
    keys.extend(kinds(config, family, settings)?);
    if growth != 0.0 {
        keys.push((LlamaSizes::rope_original_context, original_context(config, settings)?.into()));
    }
    Ok(keys)
}

/// Writes frequencies for all layers, and the growth of queries.
pub(super) fn write_growing(sizes: &LlamaSizes) -> Settings {
    let mut settings = written(sizes).unwrap_or_else(|| object([("rope_type", json!("default"))]));
    settings.insert("rope_theta".to_owned(), json!(sizes.rope_theta));
    if sizes.query_growth > 0.0 {
        settings.insert(GROWTH.to_owned(), json!(sizes.query_growth));
        let context = json!(sizes.rope_original_context);
        settings.insert("original_max_position_embeddings".to_owned(), context);
    }
    vec![("rope_parameters", Json::Object(settings))]
}

/// Translates the kind of scaling with its settings.
fn kinds(config: &FolderConfig, family: &FolderFamily, scaling: &FolderConfig) -> Result<Keys, String> {
    let mut kind = kind(scaling)?;
    if family.is_fused && FORMER_LONGROPE.contains(&kind) {
        kind = "longrope";
    }
    check_kind(kind, scaling)?;
    let number =
        |key: &str| scaling.number(key)?.ok_or_else(|| format!("rope_type = \"{kind}\" has no {key}"));
    let chosen = |key: &str, absent: f64| Ok::<_, String>(scaling.number(key)?.unwrap_or(absent));
    let name = (LlamaSizes::rope_scaling, kind.into());
    Ok(match kind {
        "default" => Keys::new(),
        "linear" => vec![name, (LlamaSizes::rope_factor, number("factor")?.into())],
        "llama3" => vec![
            name,
            (LlamaSizes::rope_factor, number("factor")?.into()),
            (LlamaSizes::rope_low_turns, number("low_freq_factor")?.into()),
            (LlamaSizes::rope_high_turns, number("high_freq_factor")?.into()),
            (LlamaSizes::rope_original_context, scaling.count("original_max_position_embeddings")?.into()),
        ],
        "yarn" => {
            let attention = yarn_attention(scaling, number("factor")?)?;
            vec![
                name,
                (LlamaSizes::rope_factor, number("factor")?.into()),
                (LlamaSizes::rope_low_turns, chosen("beta_slow", 1.0)?.into()),
                (LlamaSizes::rope_high_turns, chosen("beta_fast", 32.0)?.into()),
                (LlamaSizes::rope_original_context, original_context(config, scaling)?.into()),
                (LlamaSizes::rope_rounded, scaling.flag("truncate")?.unwrap_or(true).into()),
                (LlamaSizes::rope_attention_factor, attention.into()),
            ]
        }
        "longrope" => {
            let original = original_context(config, scaling)?;
            let growth = config.count("max_position_embeddings")? as f64 / original as f64;
            let factors = |key: &str| {
                let listed = scaling.numbers(key)?;
                listed.ok_or_else(|| format!("rope_type = \"{kind}\" has no {key}"))
            };
            vec![
                name,
                (LlamaSizes::rope_factor, chosen("factor", growth)?.into()),
                (LlamaSizes::rope_original_context, original.into()),
                (LlamaSizes::rope_attention_factor, chosen("attention_factor", 0.0)?.into()),
                (LlamaSizes::rope_short_factors, factors("short_factor")?.as_slice().into()),
                (LlamaSizes::rope_long_factors, factors("long_factor")?.as_slice().into()),
            ]
        }
        other => {
            let other = shortened(other);
            return Err(format!(
                "rope_type = \"{other}\" is not supported; supported: \"default\", \"linear\", \"llama3\", \
                 \"yarn\" and \"longrope\""
            ));
        }
    })
}

/// Rejects settings of other kinds, which would have no effect: the writer probably meant another kind.
fn check_kind(kind: &str, settings: &FolderConfig) -> Result<(), String> {
    let own: &[&str] = match kind {
        "default" => &[],
        "linear" | PROPORTIONAL => &["factor"],
        "llama3" => &["factor", "low_freq_factor", "high_freq_factor"],
        "yarn" => {
            &["factor", "attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim"]
        }
        "longrope" => &["factor", "attention_factor", "short_factor", "long_factor"],
        // An unknown kind is rejected elsewhere.
        _ => return Ok(()),
    };
    let mut all = settings.entries();
    let other = all.find(|(name, value)| {
        let is_of_all = OF_ALL_KINDS.contains(name) || value.as_f64() == Some(1.0);
        !is_of_all && !own.contains(name)
    });
    other.map_or(Ok(()), |(name, value)| {
        let value = value.to_string();
        let value = shortened(&value);
        Err(format!(
            "{name} = {value} has no effect with rope_type = \"{kind}\": leave it out, or name its type"
        ))
    })
}

fn original_context(config: &FolderConfig, scaling: &FolderConfig) -> Result<usize, String> {
    let name = "original_max_position_embeddings";
    match scaling.optional_count(name)?.or(config.optional_count(name)?) {
        Some(context) => Ok(context),
        None => config.count("max_position_embeddings"),
    }
}

/// Returns the configured factor of queries and keys, stated directly or as a quotient of two settings; 0 if
/// there is none.
fn yarn_attention(scaling: &FolderConfig, factor: f64) -> Result<f64, String> {
    if let Some(attention) = scaling.number("attention_factor")? {
        return Ok(attention);
    }
    let part = |key: &str| Ok::<_, String>(scaling.number(key)?.filter(|part| *part != 0.0));
    let (Some(above), Some(below)) = (part("mscale")?, part("mscale_all_dim")?) else { return Ok(0.0) };
    let scale = |part: f64| if factor <= 1.0 { 1.0 } else { 0.1 * part * libm::log(factor) + 1.0 };
    Ok(scale(above) / scale(below))
}

/// Writes frequencies for all layers.
pub(super) fn write_flat(sizes: &LlamaSizes) -> Settings {
    let mut settings: Settings = vec![
        ("rope_scaling", written(sizes).map_or(Json::Null, Json::Object)),
        ("rope_theta", json!(sizes.rope_theta)),
    ];
    if sizes.rotated() != sizes.head_width {
        let part = sizes.rotated() as f64 / sizes.head_width as f64;
        settings.push(("partial_rotary_factor", json!(part)));
    }
    if sizes.rope_scaling == RopeScaling::LongRope {
        settings.push(("original_max_position_embeddings", json!(sizes.rope_original_context)));
    }
    settings
}

/// Writes frequencies per type of layer.
pub(super) fn write_by_layer(sizes: &LlamaSizes) -> Settings {
    let mut full = written(sizes).unwrap_or_else(|| object([("rope_type", json!("default"))]));
    full.insert("rope_theta".to_owned(), json!(sizes.rope_theta));
    let sliding = object([("rope_theta", json!(sizes.window_rope_theta)), ("rope_type", json!("default"))]);
    vec![("rope_parameters", json!({ FULL: full, SLIDING: sliding }))]
}

fn object<const N: usize>(settings: [(&str, Json); N]) -> Map<String, Json> {
    settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the settings object of a scaling; `None` without scaling.
fn written(sizes: &LlamaSizes) -> Option<Map<String, Json>> {
    let factor = json!(sizes.rope_factor);
    let context = json!(sizes.rope_original_context);
    let attention = (sizes.rope_attention_factor > 0.0).then(|| json!(sizes.rope_attention_factor));
    let mut settings = match sizes.rope_scaling {
        RopeScaling::None => return None,
        RopeScaling::Linear => object([("factor", factor), ("rope_type", json!("linear"))]),
        RopeScaling::Llama3 => object([
            ("factor", factor),
            ("high_freq_factor", json!(sizes.rope_high_turns)),
            ("low_freq_factor", json!(sizes.rope_low_turns)),
            ("original_max_position_embeddings", context),
            ("rope_type", json!("llama3")),
        ]),
        RopeScaling::Yarn => object([
            ("beta_fast", json!(sizes.rope_high_turns)),
            ("beta_slow", json!(sizes.rope_low_turns)),
            ("factor", factor),
            ("original_max_position_embeddings", context),
            ("rope_type", json!("yarn")),
            ("truncate", json!(sizes.rope_rounded)),
        ]),
        RopeScaling::LongRope => object([
            ("factor", factor),
            ("long_factor", json!(sizes.rope_long_factors)),
            ("original_max_position_embeddings", context),
            ("rope_type", json!("longrope")),
            ("short_factor", json!(sizes.rope_short_factors)),
        ]),
    };
    settings.extend(attention.map(|attention| ("attention_factor".to_owned(), attention)));
    Some(settings)
}
