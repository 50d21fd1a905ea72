//! Searches for the largest value of a key with which a configuration fits, by planning.

use std::fmt;

use telemetry::units::{bytes, grouped};

use crate::error::{PlanError, Result};
use crate::fit::Fit;
use crate::host::RankForm;
use crate::overhead::DeviceRanks;
use crate::remedy::{changed, consequences};
use crate::resolve::Resolved;
use crate::roles::{plan_all, plan_within};
use crate::target::PlanOptions;
use config::{RunConfig, Train};
use nn::Searchable;
use worker::Placement;
use worker::Setup;

/// Returns the searchable key called `name`.
fn searched(config: &RunConfig, name: &str) -> Result<Searchable> {
    let size = config.train.micro_batch_size;
    let mut all =
        vec![Searchable { key: Train::micro_batch_size, value: size, step: 1, follows: |_, _| Vec::new() }];
    all.extend(config.model.searchable());
    let short = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
    // Accepts the usual names of this key.
    let name = if matches!(name, "micro-batch" | "micro_batch") { "micro_batch_size" } else { name };
    if let Some(position) = all.iter().position(|one| short(one.key) == name) {
        return Ok(all.swap_remove(position));
    }
    let names: Vec<_> = all.iter().map(|one| short(one.key)).collect();
    let names = match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => String::new(),
    };
    Err(PlanError::Refused(format!(
        "--largest {name}: {names} can be searched for with model.kind = \"{}\"",
        config.model.kind()
    )))
}

/// Returns the settings for `value`, including dependent keys.
///
/// # Errors
/// The value gives no valid configuration.
fn sets(searched: &Searchable, config: &RunConfig, value: usize) -> Result<Vec<String>> {
    let mut sets = vec![format!("{}={value}", searched.key)];
    sets.extend((searched.follows)(value, searched.step));
    if searched.key == Train::micro_batch_size {
        let global = value.saturating_mul(config.train.micro_batches());
        sets.push(format!("{}={global}", Train::global_batch_size));
    }
    Ok(config.with_profile_of(sets)?)
}

/// One planned configuration of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Try {
    /// Value of the searched key.
    pub value: usize,
    /// Whether the configuration fits.
    pub outcome: Outcome,
}

/// Result of planning one configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The configuration fits and reserves this many bytes at its peak.
    Fits(u64),
    /// The configuration does not fit.
    TooLarge,
    /// The configuration does not fit; it would reserve this many bytes.
    Needs(u64),
    /// The configuration is invalid, with the reason.
    Refused(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Fits(needs) => write!(f, "fits, with {} bytes ({})", grouped(*needs), bytes(*needs)),
            Outcome::TooLarge => write!(f, "does not fit"),
            Outcome::Needs(needs) => {
                write!(f, "does not fit: it needs {} bytes ({})", grouped(*needs), bytes(*needs))
            }
            Outcome::Refused(why) => write!(f, "is refused: {why}"),
        }
    }
}

/// Result of a search for the largest value.
#[derive(Clone, Debug)]
pub struct Largest {
    /// The key whose value was searched.
    pub key: &'static str,
    /// The largest value that fits, with the settings for it; `None` if no value fits.
    pub best: Option<(Try, Vec<String>)>,
    /// The next larger value, and why it does not fit.
    pub next: Try,
    /// Changes besides the searched key, in words; may be empty.
    consequences: String,
    /// Bytes of a device that its ranks' allocators may use.
    pub available: u64,
    /// Number of planned configurations.
    pub tries: usize,
}

/// Searches for the largest value of the key `name` (such as `width`) with which the configuration fits, by
/// doubling and bisection. A larger value is assumed to need no less memory. `on_result` is called for every
/// planned configuration.
///
/// # Errors
/// The model has no such key, or planning fails.
pub fn search_largest(
    config: RunConfig,
    options: &PlanOptions,
    name: &str,
    on_result: &mut dyn FnMut(&Try),
) -> Result<Largest> {
    let ranks = DeviceRanks::from_config(&config);
    let device = options.target.device(options.capacity, ranks)?;
    let description = device.description(ranks);
    let resolved = Resolved::new(config, &description)?;
    let searched = searched(&resolved.config, name)?;
    let start = searched.value;
    let step = searched.step;
    let setup = resolved.setup(Placement::Meta(description))?;
    let overhead = device.overhead.parts(ranks);
    let mut tries = 0;
    let mut attempt = |steps: usize| -> Result<Try> {
        tries += 1;
        let value = steps.saturating_mul(step);
        let outcome = outcome(&setup, sets(&searched, &setup.config, value))?;
        let tried = Try { value, outcome };
        on_result(&tried);
        Ok(tried)
    };
    let fits = |tried: &Try| matches!(tried.outcome, Outcome::Fits(_));
    // In units of the key's step: `most` fits or is 0; `above` does not fit.
    let mut best = None;
    let mut above = attempt((start / step).max(1))?;
    let mut most = 0;
    while fits(&above) {
        most = above.value / step;
        best = Some(above);
        above = attempt(most.saturating_mul(2))?;
    }
    while above.value / step - most > 1 {
        let middle = attempt(most + (above.value / step - most) / 2)?;
        if fits(&middle) {
            most = middle.value / step;
            best = Some(middle);
        } else {
            above = middle;
        }
    }
    if above.outcome == Outcome::TooLarge {
        let sets = sets(&searched, &setup.config, above.value)?;
        let plans = plan_all(&changed(&setup, &sets)?)?;
        let needs = Fit::from_plans(&setup, &plans, overhead.clone(), RankForm::Threads).needs;
        above.outcome = Outcome::Needs(needs);
    }
    let taken: u64 = overhead.iter().map(|part| part.bytes).sum();
    let limit = setup.device.limit_bytes.map_or(u64::MAX, |bytes| bytes.saturating_mul(ranks.count));
    let available = (device.total_bytes - taken).min(limit);
    let with_sets = |tried: Try| -> Result<_> {
        let sets = sets(&searched, &setup.config, tried.value)?;
        Ok((tried, sets))
    };
    let best = best.map(with_sets).transpose()?;
    let best_config = best.as_ref().map(|(_, sets)| setup.config.with(sets)).transpose()?;
    let consequences = best_config.map_or_else(String::new, |other| consequences(&setup.config, &other));
    Ok(Largest { key: searched.key, best, consequences, next: above, available, tries })
}

/// Plans a configuration until a rank does not fit.
///
/// # Errors
/// An error that would end every plan, not only this one.
fn outcome(setup: &Setup, sets: Result<Vec<String>>) -> Result<Outcome> {
    let changed = match sets.and_then(|sets| changed(setup, &sets)) {
        Ok(changed) => changed,
        Err(error) if error.exit_status() == 2 => return Ok(Outcome::Refused(error.to_string())),
        Err(error) => return Err(error),
    };
    let plans = match plan_within(&changed) {
        Ok(plans) => plans,
        Err(error) if error.is_out_of_memory() => return Ok(Outcome::TooLarge),
        Err(error) => return Err(error),
    };
    let fit = Fit::from_plans(&changed, &plans, Vec::new(), RankForm::Threads);
    Ok(if fit.fits { Outcome::Fits(fit.needs) } else { Outcome::Needs(fit.needs) })
}

impl fmt::Display for Largest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.best {
            Some((Try { value, outcome }, sets)) => {
                let sets: Vec<_> = sets.iter().map(|set| format!("--set {set}")).collect();
                let sets = sets.join(" ");
                let consequences = &self.consequences;
                writeln!(f, "the largest {} is {value} ({sets}){consequences}, which {outcome}", self.key)?;
            }
            None => writeln!(f, "no {} fits", self.key)?,
        }
        let Try { value, outcome } = &self.next;
        let available = bytes(self.available);
        let tries = self.tries;
        write!(f, "the next one, {value}, {outcome}; {available} are available ({tries} plans)")
    }
}
