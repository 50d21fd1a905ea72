//! From what was given to typed sections, defaults filled in.

use crate::RunConfig;
use crate::error::{ConfigError, Place};
use crate::key::{Key, Takes};
use crate::raw::Raw;
use crate::sections::*;
use crate::typed::{
    choice, choice_or_integer, choice_or_sizes, flag, integer, number, size, sizes, text, texts,
};
use crate::value::Value;
use crate::{check, keys, unbuilt};
use data::Tokenizer;
use std::path::{Component, Path, PathBuf};

/// Types and checks everything. `directory` is the configuration file's.
pub(crate) fn resolve(mut raw: Raw, directory: &Path) -> Result<RunConfig, ConfigError> {
    unbuilt::refuse(&raw)?;
    sift(&mut raw)?;
    let data = data(&raw, directory)?;
    let config = RunConfig {
        model: model(&raw, data.tokenizer)?,
        data,
        train: train(&raw)?,
        optim: optim(&raw)?,
        parallel: parallel(&raw, directory)?,
        precision: Precision {
            compute: choice(&raw, &keys::COMPUTE, Compute::from_name)?,
            gradients: choice(&raw, &keys::GRADIENTS, Gradients::from_name)?,
        },
        memory: Memory {
            allocator: text(&raw, &keys::ALLOCATOR)?,
            limit_bytes: integer(&raw, &keys::LIMIT_BYTES)?,
            recompute: recompute(&raw)?,
            recompute_layers: size(&raw, &keys::RECOMPUTE_LAYERS)?,
            history: integer(&raw, &keys::HISTORY)?,
        },
        telemetry: Telemetry { every: integer(&raw, &keys::TELEMETRY_EVERY)? },
        checkpoint: Checkpoint {
            every: integer(&raw, &keys::CHECKPOINT_EVERY)?,
            keep: integer(&raw, &keys::CHECKPOINT_KEEP)?,
        },
        places: raw.places(),
    };
    check::check(&raw, &config)?;
    Ok(config)
}

/// Refuses keys that belong to another kind. Those of the file are dropped silently where the command line
/// has changed the kind: `--set data.kind=synthetic` shall not need an edited file.
fn sift(raw: &mut Raw) -> Result<(), ConfigError> {
    for key in keys::KEYS {
        let (Some((kind_key, needed)), Some(given)) = (key.only, raw.given(key)) else { continue };
        let Some(kind) = raw.value(kind_key).filter(|kind| kind.value != needed.into()) else { continue };
        let overridden = |place: &Place| matches!(place, Place::Override { .. });
        // A kind that does not exist is reported as such, later.
        let exists = match (&kind_key.takes, &kind.value) {
            (Takes::Choice(names) | Takes::ChoiceOrIntegers(names, ..), Value::Text(name)) => {
                names.contains(&name.as_str())
            }
            (Takes::ChoiceOrIntegers(..), Value::List(_)) => true,
            _ => false,
        };
        if exists && (overridden(&given.place) || !overridden(&kind.place)) {
            let (place, kind) = (given.place.clone(), kind.shown);
            return Err(ConfigError::NotApplicable {
                place,
                key: key.path,
                kind_key: kind_key.path,
                needed,
                kind,
            });
        }
        raw.forget(key);
    }
    Ok(())
}

fn model(raw: &Raw, tokenizer: Tokenizer) -> Result<Model, ConfigError> {
    if choice(raw, &keys::MODEL_KIND, ModelKind::from_name)? == ModelKind::Mlp {
        return Ok(Model::Mlp(Mlp {
            sizes: sizes(raw, &keys::SIZES)?,
            activation: choice(raw, &keys::ACTIVATION, Activation::from_name)?,
        }));
    }
    let vocabulary = size(raw, &keys::VOCABULARY)?;
    Ok(Model::Gpt(Gpt {
        layers: size(raw, &keys::LAYERS)?,
        heads: size(raw, &keys::HEADS)?,
        width: size(raw, &keys::WIDTH)?,
        context: size(raw, &keys::CONTEXT)?,
        vocabulary: if vocabulary == 0 { tokenizer.vocabulary() } else { vocabulary },
    }))
}

fn data(raw: &Raw, directory: &Path) -> Result<Data, ConfigError> {
    let kind = choice(raw, &keys::DATA_KIND, DataKind::from_name)?;
    let base = match (kind, raw.given(&keys::BASE)) {
        (DataKind::Synthetic, _) => Default::default(),
        (DataKind::Text, None) => directory.to_path_buf(),
        (DataKind::Text, Some(_)) => normal(&directory.join(text(raw, &keys::BASE)?)),
    };
    in_utf8(raw, &keys::BASE, "directory of the data", &base)?;
    let name = text(raw, &keys::TOKENIZER)?;
    let tokenizer = Tokenizer::from_name(&name).map_err(|error| ConfigError::Conflict {
        place: raw.place(&[&keys::TOKENIZER]),
        reason: format!("{}: {error}", keys::TOKENIZER.path),
    })?;
    let (paths, validation_fraction) = (texts(raw, &keys::PATHS)?, number(raw, &keys::VALIDATION_FRACTION)?);
    Ok(Data { kind, tokenizer, base, paths, validation_fraction })
}

/// Refuses a path that no text of a configuration can name.
fn in_utf8(raw: &Raw, key: &Key, what: &str, path: &Path) -> Result<(), ConfigError> {
    if path.to_str().is_some() {
        return Ok(());
    }
    let reason = format!("the {what}, {}, has a name that is not UTF-8", path.display());
    Err(ConfigError::Conflict { place: raw.place(&[key]), reason })
}

/// The path without `.` and `..`, as a shell's `cd` reads them: by name, whatever is on disk.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            // At the root there is nothing above.
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

fn train(raw: &Raw) -> Result<Train, ConfigError> {
    Ok(Train {
        steps: integer(raw, &keys::STEPS)?,
        micro_batch: size(raw, &keys::MICRO_BATCH)?,
        micro_batches: size(raw, &keys::MICRO_BATCHES)?,
        seed: integer(raw, &keys::SEED)?,
        validate_every: integer(raw, &keys::VALIDATE_EVERY)?,
        validation_micro_batches: integer(raw, &keys::VALIDATION_MICRO_BATCHES)?,
    })
}

fn optim(raw: &Raw) -> Result<Optim, ConfigError> {
    let learning_rate = number(raw, &keys::LEARNING_RATE)?;
    let min_learning_rate = match raw.given(&keys::MIN_LEARNING_RATE) {
        Some(_) => number(raw, &keys::MIN_LEARNING_RATE)?,
        None => learning_rate / 10.0,
    };
    Ok(Optim {
        kind: choice(raw, &keys::OPTIM_KIND, OptimKind::from_name)?,
        learning_rate,
        min_learning_rate,
        warmup_steps: integer(raw, &keys::WARMUP_STEPS)?,
        weight_decay: number(raw, &keys::WEIGHT_DECAY)?,
        clip_norm: number(raw, &keys::CLIP_NORM)?,
        beta1: number(raw, &keys::BETA1)?,
        beta2: number(raw, &keys::BETA2)?,
        epsilon: number(raw, &keys::EPSILON)?,
        momentum: number(raw, &keys::MOMENTUM)?,
    })
}

/// The file of times, if one is named.
fn profile(raw: &Raw, directory: &Path) -> Result<Option<PathBuf>, ConfigError> {
    let name = text(raw, &keys::PROFILE)?;
    if name.is_empty() {
        return Ok(None);
    }
    let path = normal(&directory.join(name));
    in_utf8(raw, &keys::PROFILE, "file of times", &path)?;
    Ok(Some(path))
}

fn parallel(raw: &Raw, directory: &Path) -> Result<Parallel, ConfigError> {
    let lanes = match raw.given(&keys::LANES) {
        Some(_) => size(raw, &keys::LANES)?,
        None => check::default_lanes(size(raw, &keys::MICRO_BATCHES)?),
    };
    let schedule = choice(raw, &keys::SCHEDULE, Schedule::from_name)?;
    let from_name = |name: &str| match name {
        "fastest" => Some(Division::Fastest),
        "smallest" => Some(Division::Smallest),
        _ => None,
    };
    Ok(Parallel {
        data: size(raw, &keys::DATA_PARALLEL)?,
        pipeline: size(raw, &keys::PIPELINE)?,
        lanes,
        schedule,
        chunks: if schedule == Schedule::Interleaved { size(raw, &keys::CHUNKS)? } else { 1 },
        division: choice_or_sizes(raw, &keys::DIVISION, from_name, Division::Layers)?,
        profile: profile(raw, directory)?,
        reduction: choice(raw, &keys::REDUCTION, Reduction::from_name)?,
        shard_optimizer: flag(raw, &keys::SHARD_OPTIMIZER)?,
        bucket_bytes: integer(raw, &keys::BUCKET_BYTES)?,
        overlap: choice(raw, &keys::OVERLAP, Overlap::from_name)?,
        peers: choice(raw, &keys::PEERS, Peers::from_name)?,
        peer_blocks: u32::try_from(integer(raw, &keys::PEER_BLOCKS)?).unwrap_or(u32::MAX),
        timeout_seconds: integer(raw, &keys::TIMEOUT_SECONDS)?,
    })
}

fn recompute(raw: &Raw) -> Result<Recompute, ConfigError> {
    // The largest of these numbers is far within usize.
    let segments = |count| Recompute::Segments(usize::try_from(count).unwrap_or(usize::MAX));
    choice_or_integer(raw, &keys::RECOMPUTE, Recompute::from_name, segments)
}
