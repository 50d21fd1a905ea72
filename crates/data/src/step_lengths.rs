//! Groups samples of similar length into steps, so that sequences have one of a few lengths.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::permutation::Permutation;
use philox::key_of_name;

/// Maximum number of steps in a window whose samples are sorted by length, as in transformers' sampler.
const WINDOW_STEPS: u64 = 50;
/// Maximum number of different sequence lengths in a run.
const MOST_LENGTHS: usize = 4;
/// Long sequences are a multiple of this many tokens, because such matmuls are fast on every GPU.
const MULTIPLE: usize = 64;
/// Sequences below 512 tokens are a multiple of this, which suffices for tensor cores.
const MULTIPLE_OF_SHORT: usize = 8;
/// Number of windows kept in memory: one for reading data, the others for the comparison with the plan.
const MOST_KEPT: usize = 4;

/// An order of samples that groups similar lengths into the same step, and the sequence length of each step.
///
/// The shuffled samples are divided into windows of up to 50 steps. In a window, samples are sorted by length
/// and divided into steps, which are then shuffled. The sequences of a step have the smallest of a few
/// lengths that holds all of its samples. These lengths give the first epoch the least padding.
#[derive(Debug)]
pub struct StepLengths {
    /// Number of input tokens of each sample, at most the context.
    sizes: Vec<usize>,
    /// Number of samples per step.
    step_samples: usize,
    window_steps: u64,
    order_key: [u32; 2],
    steps_key: [u32; 2],
    /// Possible sequence lengths in tokens, ascending.
    lengths: Vec<usize>,
    windows: Mutex<VecDeque<(u64, Arc<Window>)>>,
}

/// The steps of a window.
#[derive(Debug)]
struct Window {
    /// Indices of the samples, step by step.
    samples: Vec<usize>,
    /// Number of input tokens of the longest sample in each step.
    longest: Vec<usize>,
}

impl StepLengths {
    /// Groups samples into steps of `step_samples`. `sizes` has the number of input tokens of each sample, at
    /// least one sample; sequences have at most `context` tokens.
    #[must_use]
    pub fn new(sizes: Vec<usize>, step_samples: usize, context: usize, seed: u64) -> Self {
        let sizes: Vec<usize> = sizes.into_iter().map(|size| size.clamp(1, context)).collect();
        let step_samples = step_samples.max(1);
        let window_steps = (sizes.len() / step_samples).clamp(1, WINDOW_STEPS as usize) as u64;
        let mut grouped = Self {
            order_key: key_of_name(seed, "data.order"),
            steps_key: key_of_name(seed, "data.group_by_length"),
            lengths: Vec::new(),
            windows: Mutex::default(),
            sizes,
            step_samples,
            window_steps,
        };
        let longest = grouped.sizes.iter().copied().max().unwrap_or(1);
        let multiple = if context < 512 { MULTIPLE_OF_SHORT } else { MULTIPLE };
        let rounded = |size: usize| size.next_multiple_of(multiple).min(context);
        let mut sizes: Vec<usize> =
            grouped.first_epoch().map(|step| rounded(grouped.longest_of(step))).collect();
        sizes.sort_unstable();
        grouped.lengths = least_padding(&sizes, rounded(longest));
        grouped
    }

    /// Returns another grouping of the same samples.
    #[must_use]
    pub fn regrouped(&self, step_samples: usize, context: usize, seed: u64) -> Self {
        Self::new(self.sizes.clone(), step_samples, context, seed)
    }

    /// Returns the largest sequence length.
    #[must_use]
    pub fn longest(&self) -> Option<usize> {
        self.lengths.last().copied()
    }

    /// Returns all sequence lengths, ascending. The first epoch need not have all of them.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Returns (sequence length, fraction of the first epoch's steps with it), ascending.
    #[must_use]
    pub fn shares(&self) -> Vec<(usize, f64)> {
        let steps = self.first_epoch().end as f64;
        let share = |length: usize| {
            let count = self.first_epoch().filter(|step| self.length_of_step(*step) == length).count();
            (length, count as f64 / steps)
        };
        self.lengths.iter().map(|length| share(*length)).filter(|(_, share)| *share > 0.0).collect()
    }

    /// Returns the mean sequence length in the first epoch.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.shares().iter().map(|(length, share)| *length as f64 * share).sum()
    }

    /// Returns the sequence length of step `step`, counted from 0.
    #[must_use]
    pub fn length_of_step(&self, step: u64) -> usize {
        let longest = self.longest_of(step);
        let index = self.lengths.partition_point(|length| *length < longest);
        self.lengths.get(index).copied().unwrap_or(longest)
    }

    /// Returns the sequence length of training micro-batch `number`, which has `micro_batch` samples.
    pub(crate) fn length_of(&self, number: u64, micro_batch: usize) -> usize {
        let first = u128::from(number) * micro_batch as u128;
        self.length_of_step((first / self.step_samples as u128) as u64)
    }

    /// Returns the index of the sample for training sequence `sequence`.
    pub(crate) fn sample(&self, sequence: u128) -> usize {
        let step = (sequence / self.step_samples as u128) as u64;
        let index = (sequence % self.step_samples as u128) as usize;
        let of_window = (step % self.window_steps) as usize * self.step_samples + index;
        self.window(step / self.window_steps).samples[of_window]
    }

    /// Returns the steps of the first epoch.
    fn first_epoch(&self) -> std::ops::Range<u64> {
        0..self.sizes.len().div_ceil(self.step_samples) as u64
    }

    /// Returns the number of input tokens of the longest sample in a step.
    fn longest_of(&self, step: u64) -> usize {
        self.window(step / self.window_steps).longest[(step % self.window_steps) as usize]
    }

    fn window(&self, number: u64) -> Arc<Window> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, window)) = windows.iter().find(|(other, _)| *other == number) {
            return Arc::clone(window);
        }
        let window = Arc::new(self.new_window(number));
        windows.truncate(MOST_KEPT - 1);
        windows.push_front((number, Arc::clone(&window)));
        window
    }

    fn new_window(&self, number: u64) -> Window {
        let count = self.sizes.len() as u64;
        let in_window = self.window_steps as usize * self.step_samples;
        let first = u128::from(number) * in_window as u128;
        let mut sorted: Vec<(u64, usize)> = (first..first + in_window as u128)
            .map(|sequence| {
                let sample = Permutation::in_epochs(count, self.order_key, sequence) as usize;
                ((sequence / u128::from(count)) as u64, sample)
            })
            .collect();
        // Samples of two epochs are not mixed, so that a step does not have the same one twice.
        sorted.sort_by_key(|(epoch, sample)| (*epoch, self.sizes[*sample]));
        let order = Permutation::new(self.window_steps, self.steps_key, number);
        let samples: Vec<usize> = (0..self.window_steps)
            .flat_map(|step| {
                let first = order.at(step) as usize * self.step_samples;
                sorted[first..first + self.step_samples].iter().map(|(_, sample)| *sample)
            })
            .collect();
        let longest = samples.chunks_exact(self.step_samples);
        let longest = longest.map(|step| step.iter().map(|sample| self.sizes[*sample]).max().unwrap_or(1));
        Window { longest: longest.collect(), samples }
    }
}

/// Returns up to [`MOST_LENGTHS`] ascending lengths that minimise the padding of samples with the ascending
/// `sizes`. The last is `longest`. Computed by dynamic programming over the distinct sizes.
fn least_padding(sizes: &[usize], longest: usize) -> Vec<usize> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for size in sizes.iter().copied().filter(|size| *size < longest) {
        match counts.last_mut().filter(|(last, _)| *last == size) {
            Some((_, count)) => *count += 1,
            None => counts.push((size, 1)),
        }
    }
    let others = sizes.len() - counts.iter().map(|(_, count)| count).sum::<usize>();
    counts.push((longest, others));
    // By the number of counts before: the fewest positions with the lengths so far, and these lengths.
    let mut best: Vec<(usize, Vec<usize>)> = vec![(usize::MAX, Vec::new()); counts.len() + 1];
    best[0].0 = 0;
    for _ in 0..MOST_LENGTHS {
        let before = best.clone();
        for end in 1..=counts.len() {
            let length = counts[end - 1].0;
            let mut sequences = 0;
            for start in (0..end).rev() {
                sequences += counts[start].1;
                let (positions, lengths) = &before[start];
                let positions = positions.saturating_add(sequences * length);
                if positions < best[end].0 {
                    best[end] = (positions, [&lengths[..], &[length]].concat());
                }
            }
        }
    }
    best.pop().map_or_else(|| vec![longest], |(_, lengths)| lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lengths_have_the_least_padding() {
        for (sizes, longest, expected) in [
            (&[64, 64, 128][..], 128, &[64, 128][..]),
            (&[64, 128, 192, 256], 256, &[64, 128, 192, 256]),
            (&[64, 64, 64, 128, 192, 192, 256, 320], 320, &[64, 192, 256, 320]),
            (&[64], 512, &[64, 512]),
            (&[100], 100, &[100]),
        ] {
            assert_eq!(least_padding(sizes, longest), expected, "{sizes:?}");
        }
    }

    #[test]
    fn every_epoch_has_each_sample_once_and_steps_have_like_lengths() {
        for (samples, step_samples) in [(1000, 8), (57, 8), (5, 8), (403, 4)] {
            let sizes: Vec<usize> = (0..samples).map(|sample| 1 + sample * 7919 % 900).collect();
            let grouped = StepLengths::new(sizes.clone(), step_samples, 1024, 3);
            let shares = grouped.shares();
            assert!(shares.len() <= MOST_LENGTHS);
            assert!((shares.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
            let mut counts = vec![0; samples];
            let window = grouped.window_steps as usize * step_samples;
            let sequences = samples * window;
            let mut padded = 0;
            for sequence in 0..sequences {
                let sample = grouped.sample(sequence as u128);
                counts[sample] += 1;
                let length = grouped.length_of_step((sequence / step_samples) as u64);
                assert_eq!(length, grouped.length_of((sequence / 2) as u64, 2));
                assert!(sizes[sample] <= length && grouped.lengths().contains(&length));
                padded += length - sizes[sample];
            }
            // So many sequences are whole epochs and whole windows.
            assert!(counts.iter().all(|count| *count == window), "{samples}: {counts:?}");
            let all: usize = sizes.iter().map(|size| 1024 - size).sum();
            let share = padded as f64 / (all * window) as f64;
            if samples > 400 {
                assert!(share < 0.45, "{samples}: {share}");
            }
        }
    }
}
