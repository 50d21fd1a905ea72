//! Chooses settings with which a configuration fits a device, by planning.

use std::path::Path;

use config::{LoraBase, LoraSection, Memory, Optim, RunConfig, Train};
use keys::Value;
use plan::{DeviceRanks, PlanOptions, PlanReport, plan_run, resolve};

use crate::document::Document;
use crate::draft::Draft;
use crate::error::{RecipeError, Result};

/// Number of pieces of the loss.
const LOSS_PIECES: u64 = 8;
/// Warm-up takes at most one part in this many of a run.
const WARMUP_PART: u64 = 10;
/// Number of steps for plans that compare memory, so that epochs need not be counted.
const STEPS: &str = "train.steps=100";

/// A configuration that fits, with its plan.
#[derive(Debug)]
pub struct Fitted {
    /// The configuration.
    pub document: Document,
    /// Settings changed to make it fit, in order.
    pub changes: Vec<String>,
    /// The plan of the run.
    pub report: PlanReport,
}

/// A setting that reduces memory.
#[derive(Clone, Debug)]
struct Change {
    key: &'static str,
    value: Value,
    comment: &'static str,
}

/// Memory of a configuration that does not fit.
#[derive(Debug)]
struct Miss {
    settings: String,
    device: String,
    needs: u64,
    available: u64,
}

/// Fits a draft to a device: unchanged, or with settings that reduce memory, added one after another.
/// `directory` contains the configuration. `on_try` is called with each change that is tried.
///
/// # Errors
/// The configuration is invalid, data cannot be read, or nothing fits.
pub fn fit(
    draft: &Draft,
    directory: &Path,
    options: &PlanOptions,
    on_try: &mut dyn FnMut(&str),
) -> Result<Fitted> {
    let mut document = draft.document.clone();
    let sets = sets_of_plans(&document, directory, options)?;
    let mut applied: Vec<&'static str> = Vec::new();
    let mut nearest = match attempt(&document, directory, (options, &sets))? {
        Ok(()) => return finish(document, &applied, directory, options),
        Err(miss) => miss,
    };
    for change in changes(&draft.document) {
        let before = document.clone();
        document.set(change.key, change.value, change.comment);
        if parse(&document, directory, &[]).is_err() {
            // The model family does not have the key.
            document = before;
            continue;
        }
        on_try(&document.assignment(change.key));
        if !applied.contains(&change.key) {
            applied.push(change.key);
        }
        match attempt(&document, directory, (options, &sets))? {
            Ok(()) => return finish(document, &applied, directory, options),
            Err(miss) if miss.needs <= nearest.needs => nearest = miss,
            Err(_) => {}
        }
    }
    let Miss { settings, device, needs, available } = nearest;
    Err(RecipeError::TooLarge { device, settings, needs, available })
}

/// Returns the settings that reduce memory, in the order in which they are tried.
fn changes(document: &Document) -> Vec<Change> {
    let micro_batch = match document.get(Train::micro_batch_size) {
        Some(Value::Integer(size)) => u64::try_from(*size).unwrap_or(1),
        _ => 1,
    };
    let halves = std::iter::successors(Some(micro_batch / 2), |size| Some(size / 2));
    let mut changes: Vec<Change> = halves
        .take_while(|size| *size > 0)
        .map(|size| Change {
            key: Train::micro_batch_size,
            value: size.into(),
            comment: "as many as fit in one pass",
        })
        .collect();
    changes.push(Change {
        key: Memory::recompute,
        value: "block".into(),
        comment: "backward computes activations again, which saves memory",
    });
    changes.push(Change {
        key: "model.loss_pieces",
        value: LOSS_PIECES.into(),
        comment: "the scores of all tokens are never in memory at once",
    });
    if document.get(LoraSection::rank).is_some() {
        changes.push(Change {
            key: LoraSection::base,
            value: LoraBase::Nf4.name().into(),
            comment: "the frozen matrices are kept in 4 bits",
        });
    }
    changes
}

fn parse(document: &Document, directory: &Path, overrides: &[String]) -> Result<RunConfig> {
    Ok(RunConfig::parse_made(&document.to_toml(), "the new configuration", directory, overrides)?)
}

/// Returns settings that spare plans from reading the data again: the number of steps, and the sequence
/// length determined by the samples.
fn sets_of_plans(document: &Document, directory: &Path, options: &PlanOptions) -> Result<Vec<String>> {
    let config = parse(document, directory, &[])?;
    let device = options.target.device(options.capacity, DeviceRanks::from_config(&config))?;
    let (config, sized) = resolve(config, &device.description(DeviceRanks::ALONE))?;
    let context = sized.map(|_| format!("model.context={}", config.model.examples().units()));
    Ok(std::iter::once(STEPS.to_owned()).chain(context).collect())
}

/// Plans a configuration. Returns its memory if it does not fit.
fn attempt(
    document: &Document,
    directory: &Path,
    (options, sets): (&PlanOptions, &[String]),
) -> Result<std::result::Result<(), Miss>> {
    let report = plan_run(parse(document, directory, sets)?, options)?;
    match report.refusal() {
        None => Ok(Ok(())),
        Some(_) => Ok(Err(miss(document, &report))),
    }
}

fn miss(document: &Document, report: &PlanReport) -> Miss {
    let keys = [Train::micro_batch_size, Memory::recompute, "model.loss_pieces", LoraSection::base];
    let settings = keys.map(|key| document.assignment(key));
    let settings: Vec<_> = settings.into_iter().filter(|text| !text.is_empty()).collect();
    Miss {
        settings: settings.join(", "),
        device: report.device_model.clone(),
        needs: report.fit.needs,
        available: report.fit.available(),
    }
}

/// Plans the whole run of a configuration that fits.
fn finish(
    mut document: Document,
    applied: &[&'static str],
    directory: &Path,
    options: &PlanOptions,
) -> Result<Fitted> {
    let report = plan_run(parse(&document, directory, &[])?, options)?;
    if report.refusal().is_some() {
        let Miss { settings, device, needs, available } = miss(&document, &report);
        return Err(RecipeError::TooLarge { device, settings, needs, available });
    }
    shorten_warmup(&mut document, report.steps);
    let changes = applied.iter().map(|key| document.assignment(key)).collect();
    Ok(Fitted { document, changes, report })
}

/// Reduces warm-up to at most a tenth of a short run.
fn shorten_warmup(document: &mut Document, steps: u64) {
    let most = (steps / WARMUP_PART).max(1);
    let is_longer = match document.get(Optim::warmup_steps) {
        Some(Value::Integer(warmup)) => *warmup > i128::from(most),
        _ => false,
    };
    if is_longer {
        document.set(
            Optim::warmup_steps,
            most,
            format!("a tenth of the {steps} steps, in which the rate rises"),
        );
    }
}
