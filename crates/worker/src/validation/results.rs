//! The results of validation micro-batches, gathered from the ranks that computed them.

use collective::{Axis, GridGroups};
use parallel::data::Assignment;
use tensor::ops::accuracy::COUNTS;

use crate::error::Result;
use crate::validation::preference::{FIGURES, PreferenceFigures};

/// The results of a rank's evaluated micro-batches, in order; empty unless it has the last stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evaluated {
    /// For each micro-batch, the values of its loss.
    pub(crate) values: Vec<Vec<f32>>,
    /// For each micro-batch of images, its classification counts.
    pub(crate) counts: Option<Vec<[u32; COUNTS]>>,
}

/// The results of a rank's validation micro-batches, in order; empty unless it has the last stage.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Mean loss of each micro-batch.
    pub losses: Vec<f32>,
    /// For each micro-batch of preference pairs, the figures of its loss.
    pub figures: Option<Vec<[f32; FIGURES]>>,
    /// For each micro-batch of images: [images, top-1 hits, top-5 hits].
    pub counts: Option<Vec<[u32; COUNTS]>>,
    /// Number of targets in each micro-batch, if the loss is a mean over the targets of all.
    pub targets: Option<Vec<u32>>,
}

impl Losses {
    /// Converts evaluated micro-batches. `has_figures`: whether losses come with preference metrics;
    /// `targets`: number of targets in each micro-batch.
    pub(crate) fn new(evaluated: Evaluated, has_figures: bool, targets: Option<Vec<u32>>) -> Self {
        let Evaluated { values, counts } = evaluated;
        let first = |values: &Vec<f32>| values.first().copied().unwrap_or(f32::NAN);
        let others = |values: &Vec<f32>| values.get(1..).unwrap_or_default().try_into().unwrap_or_default();
        let figures = has_figures.then(|| values.iter().map(others).collect());
        Losses { losses: values.iter().map(first).collect(), figures, counts, targets }
    }
}

/// The result of a validation, equal on every rank and every grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Mean loss.
    pub loss: f64,
    /// Classification accuracy; `None` unless examples are images.
    pub accuracy: Option<Accuracy>,
    /// Preference figures; `None` unless examples are preference pairs.
    pub preference: Option<PreferenceFigures>,
}

/// Classification counts over validation images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accuracy {
    /// Number of images.
    pub images: u64,
    /// Number of images whose class had the highest score (top-1).
    pub first: u64,
    /// Number of images whose class had one of the five highest scores (top-5).
    pub among: u64,
}

impl Accuracy {
    /// Returns the top-1 accuracy, from 0 to 1.
    #[must_use]
    pub fn top_1(&self) -> f64 {
        self.first as f64 / self.images.max(1) as f64
    }

    /// Returns the top-5 accuracy, from 0 to 1.
    #[must_use]
    pub fn top_5(&self) -> f64 {
        self.among as f64 / self.images.max(1) as f64
    }
}

impl Validation {
    /// Averages the results of all micro-batches, in order. Images are weighted by their number, tokens by
    /// the number of targets. In a preference loss, only the part that is a mean over targets is weighted.
    #[must_use]
    pub fn from_losses(all: &Losses) -> Self {
        let losses = || all.losses.iter().map(|loss| f64::from(*loss));
        if let Some(counts) = &all.counts {
            let sum = |at: usize| counts.iter().map(|counts| u64::from(counts[at])).sum();
            let accuracy = Accuracy { images: sum(0), first: sum(1), among: sum(2) };
            let images = counts.iter().map(|counts| u64::from(counts[0]));
            return Self {
                loss: weighted_mean(losses(), images),
                accuracy: Some(accuracy),
                preference: None,
            };
        }
        let targets = all.targets.iter().flatten().map(|count| u64::from(*count));
        let preference = all.figures.as_ref().map(|figures| PreferenceFigures::mean(figures));
        let loss = match (&all.figures, &all.targets) {
            (_, None) => losses().sum::<f64>() / all.losses.len().max(1) as f64,
            (None, Some(_)) => weighted_mean(losses(), targets),
            (Some(figures), Some(_)) => {
                let learnt = || figures.iter().map(|figures| f64::from(figures[FIGURES - 1]));
                let of_pairs: f64 = losses().zip(learnt()).map(|(loss, learnt)| loss - learnt).sum();
                of_pairs / all.losses.len().max(1) as f64 + weighted_mean(learnt(), targets)
            }
        };
        Self { loss, accuracy: None, preference }
    }
}

/// Returns the mean of `means`, weighted by `counts`; NaN if there are none.
pub fn weighted_mean(means: impl Iterator<Item = f64>, counts: impl Iterator<Item = u64> + Clone) -> f64 {
    // Equal counts are 1, so that they change no bit of the mean.
    let most = counts.clone().max().unwrap_or(0).max(1) as f64;
    let weights = counts.map(|count| count as f64 / most);
    let (sum, all) =
        means.zip(weights).fold((0.0, 0.0), |(sum, all), (mean, weight)| (sum + mean * weight, all + weight));
    sum / all
}

/// Gathers the results of all validation micro-batches of an assignment on every rank, in order. `own` are
/// the results of this rank's micro-batches.
pub fn of_all(groups: &mut GridGroups, own: &Losses, assignment: &Assignment) -> Result<Losses> {
    let bits: Vec<u32> = own.losses.iter().map(|loss| loss.to_bits()).collect();
    let losses = floats(gathered(groups, (&bits, 1), assignment)?);
    let mut figures = None;
    if let Some(own) = &own.figures {
        let bits: Vec<u32> = own.as_flattened().iter().map(|figure| figure.to_bits()).collect();
        let all = floats(gathered(groups, (&bits, FIGURES), assignment)?);
        figures = Some(all.as_chunks().0.to_vec());
    }
    let mut counts = None;
    if let Some(own) = &own.counts {
        counts = Some(gathered(groups, (own.as_flattened(), COUNTS), assignment)?.as_chunks().0.to_vec());
    }
    let targets = own.targets.as_ref();
    let targets = targets.map(|own| gathered(groups, (own, 1), assignment)).transpose()?;
    Ok(Losses { losses, figures, counts, targets })
}

fn floats(bits: Vec<u32>) -> Vec<f32> {
    bits.into_iter().map(f32::from_bits).collect()
}

/// Gathers the words of all micro-batches of an assignment on every rank, in order. `own` has `each` words
/// for each of this rank's micro-batches.
pub(crate) fn gathered(
    groups: &mut GridGroups,
    (own, each): (&[u32], usize),
    assignment: &Assignment,
) -> Result<Vec<u32>> {
    let bytes: Vec<u8> = own.iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = groups.control().all_gather(&bytes)?;
    let grid = *groups.grid();
    let last = (Axis::Pipeline, grid.size(Axis::Pipeline) - 1);
    let micro_batch_words = |number: usize| -> Option<&[[u8; 4]]> {
        let (replica, index) = assignment.owner(number);
        let bytes = all.get(grid.rank_at(&[(Axis::Data, replica), last]))?;
        Some(bytes.get(4 * each * index..4 * each * (index + 1))?.as_chunks::<4>().0)
    };
    let words = (0..assignment.total()).filter_map(micro_batch_words).flatten();
    Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_and_targets_weigh_alike_whatever_their_micro_batch() {
        let counts = Some(vec![[2, 1, 2], [1, 1, 1], [0, 0, 0]]);
        let plain = Losses { losses: vec![1.0, 4.0, 0.0], ..Losses::default() };
        let images = Losses { counts, ..plain.clone() };
        let Validation { loss, accuracy, .. } = Validation::from_losses(&images);
        assert_eq!((loss, accuracy), (2.0, Some(Accuracy { images: 3, first: 2, among: 3 })));
        assert_eq!(accuracy.map(|accuracy| (accuracy.top_1(), accuracy.top_5())), Some((2.0 / 3.0, 1.0)));
        assert_eq!(Validation::from_losses(&plain).loss, 5.0 / 3.0);
        let targets = Some(vec![2, 1, 0]);
        assert_eq!(Validation::from_losses(&Losses { targets: targets.clone(), ..plain.clone() }).loss, 2.0);
        let equal = Losses { targets: Some(vec![7; 3]), ..plain.clone() };
        assert_eq!(Validation::from_losses(&equal), Validation::from_losses(&plain));
        // Of pairs, 0.5, 1 and 0 are a mean over targets: (0.5 + 3 + 0) / 3 + (2 · 0.5 + 1) / 3.
        let figures = [0.5, 1.0, 0.0].map(|learnt| [0.0, 0.0, 0.0, 0.0, learnt]);
        let pairs = Losses { targets, figures: Some(figures.to_vec()), ..plain };
        assert_eq!(Validation::from_losses(&pairs).loss, 3.5 / 3.0 + 2.0 / 3.0);
    }
}
