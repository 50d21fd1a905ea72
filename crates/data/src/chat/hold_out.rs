//! Selects the conversations or preference pairs that are held out for validation.

use philox::key_of_name;

use crate::permutation::Permutation;

system::names! {
    /// Selects the conversations or pairs held out for validation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ValidationSplit {
        /// The end of all files together.
        #[default]
        End = "end",
        /// A random sample of all files together.
        Shuffled = "shuffled",
        /// The end of each file.
        PerFile = "per-file",
    }
}

/// How conversations or pairs are held out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HoldOut {
    /// Selects the part to hold out.
    pub split: ValidationSplit,
    /// The fraction to hold out, at least 0 and below 1. The resulting number is rounded up.
    pub fraction: f64,
    /// Seed of the random sample.
    pub seed: u64,
}

impl HoldOut {
    /// Divides the contents of files into training and validation, both in file order. With
    /// [`ValidationSplit::PerFile`], every file keeps at least one for training.
    #[must_use]
    pub fn split<T>(&self, files: Vec<Vec<T>>) -> (Vec<T>, Vec<T>) {
        let mut training = Vec::new();
        let mut validation = Vec::new();
        if self.split == ValidationSplit::PerFile {
            for mut file in files {
                let held_out = self.count(file.len()).min(file.len().saturating_sub(1));
                validation.extend(file.split_off(file.len() - held_out));
                training.extend(file);
            }
            return (training, validation);
        }
        let all = files.iter().map(Vec::len).sum();
        let held_out = self.count(all) as u64;
        let permutation = Permutation::new(all as u64, key_of_name(self.seed, "data.validation_split"), 0);
        for (index, one) in (0..all as u64).zip(files.into_iter().flatten()) {
            let turn = match self.split {
                ValidationSplit::Shuffled => permutation.at(index),
                ValidationSplit::End | ValidationSplit::PerFile => all as u64 - 1 - index,
            };
            if turn < held_out { validation.push(one) } else { training.push(one) }
        }
        (training, validation)
    }

    /// Returns how many of `all` are held out.
    fn count(&self, all: usize) -> usize {
        ((all as f64 * self.fraction).ceil() as usize).min(all)
    }
}
