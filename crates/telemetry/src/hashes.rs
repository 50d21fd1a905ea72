//! Hashes of a step's arrays (`hashes.jsonl`), and the first array that differs between two runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use system::file_error::FileError;
use system::lines::Lines;

use crate::error::{Result, TelemetryError, Unreadable};
use crate::lines_of_steps::MOST_LINE;

/// Name of the file in a run directory.
pub const FILE: &str = "hashes.jsonl";

/// Kinds of hashed arrays, in the order in which a step computes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// Weights before the step.
    Weights,
    /// Tensors of the optimizer before the step: moments and master weights.
    #[serde(rename = "optimizer")]
    OptimizerState,
    /// Outputs of operators.
    Forward,
    /// Gradients of operators' inputs.
    Backward,
    /// Gradients of weights, summed over all micro-batches and ranks, before clipping.
    Gradients,
}

/// The hash of one array of a step, independent of the grid and of sharding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedArray {
    /// Kind of the array.
    pub section: Section,
    /// Number of the micro-batch in the run, for activations and their gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u64>,
    /// Path of the module.
    pub module: String,
    /// The operator that computed the array; empty for weights, gradients and optimizer state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// Name of the array.
    pub array: String,
    /// The hash, in hexadecimal.
    pub hash: String,
}

/// The hashes of a step, in the order in which one rank computes the arrays: a line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedStep {
    /// The step, from 1.
    pub step: u64,
    /// The arrays.
    pub arrays: Vec<HashedArray>,
}

impl fmt::Display for HashedArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HashedArray { section, micro_batch, module, operator, array, .. } = self;
        match section {
            Section::Weights => {
                return write!(f, "the weight `{array}` (module `{module}`), before the step");
            }
            Section::OptimizerState => {
                return write!(f, "`{array}` of the optimizer (module `{module}`), before the step");
            }
            Section::Gradients => {
                return write!(f, "the gradient of `{array}` (module `{module}`), summed over all ranks");
            }
            Section::Forward => write!(f, "forward: the {array} of operator `{operator}` in `{module}`")?,
            Section::Backward => write!(f, "backward: the {array} of operator `{operator}` in `{module}`")?,
        }
        micro_batch.map_or(Ok(()), |number| write!(f, ", micro-batch {number}"))
    }
}

/// The first difference between the hashes of two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parting {
    /// The step, from 1.
    pub step: u64,
    /// The array.
    pub array: HashedArray,
    /// Whether only one of the runs has the array.
    pub only_in_one: bool,
    /// The last hashed step before this one; equal in both runs.
    pub last_equal: Option<u64>,
    /// Numbers of differing arrays and of all arrays in the step.
    pub counts: (usize, usize),
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parting { step, array, only_in_one, last_equal, counts: (differ, all) } = self;
        let only = if *only_in_one { " (in one run only)" } else { "" };
        write!(f, "step {step}: {array}{only}; {differ} of the step's {all} arrays differ")?;
        let before_step = matches!(array.section, Section::Weights | Section::OptimizerState);
        match last_equal {
            Some(last) if before_step && last + 1 == *step => {
                write!(f, ", none of step {last}: its update differs, or the state changed after it")
            }
            Some(last) => write!(f, ", none of step {last}"),
            None => Ok(()),
        }
    }
}

/// The comparison of two runs' hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HashComparison {
    /// Number of steps that are hashed in both runs.
    pub steps: usize,
    /// Number of arrays that both runs have.
    pub arrays: usize,
    /// Number of operator results that only one run has, because the runs fuse operators differently.
    pub unmatched: usize,
    /// The first difference.
    pub parting: Option<Parting>,
}

/// Compares the steps that are hashed in both runs, in order, up to the first difference.
pub fn compare(first: &[HashedStep], second: &[HashedStep]) -> HashComparison {
    let mut comparison = HashComparison { steps: 0, arrays: 0, unmatched: 0, parting: None };
    let mut last_equal = None;
    for one in first {
        let Some(other) = second.iter().find(|other| other.step == one.step) else { continue };
        comparison.steps += 1;
        comparison.parting = comparison.add(one, other, last_equal);
        if comparison.parting.is_some() {
            break;
        }
        last_equal = Some(one.step);
    }
    comparison
}

impl HashComparison {
    /// Compares the arrays of one step. Returns the first difference.
    fn add(&mut self, one: &HashedStep, other: &HashedStep, last_equal: Option<u64>) -> Option<Parting> {
        let theirs: BTreeMap<_, _> = keys(&other.arrays).zip(&other.arrays).collect();
        let (mut differing, mut matched): (Vec<(&HashedArray, bool)>, _) = (Vec::new(), 0);
        // Operators may be fused differently; everything else must have a counterpart.
        let is_fused = |array: &HashedArray| matches!(array.section, Section::Forward | Section::Backward);
        for (key, array) in keys(&one.arrays).zip(&one.arrays) {
            match theirs.get(&key) {
                Some(there) => {
                    matched += 1;
                    differing.extend((array.hash != there.hash).then_some((array, false)));
                }
                None if is_fused(array) => self.unmatched += 1,
                None => differing.push((array, true)),
            }
        }
        let own: BTreeSet<_> = keys(&one.arrays).collect();
        for (_, array) in keys(&other.arrays).zip(&other.arrays).filter(|(key, _)| !own.contains(key)) {
            match is_fused(array) {
                true => self.unmatched += 1,
                false => differing.push((array, true)),
            }
        }
        self.arrays += matched;
        let (array, only_in_one) = differing.first().map(|(array, only)| ((*array).clone(), *only))?;
        let counts = (differing.len(), matched.max(differing.len()));
        Some(Parting { step: one.step, array, only_in_one, last_equal, counts })
    }
}

/// Identity of an array within a step: section, micro-batch, names, the module of the array before it, and an
/// index among equal keys. The module before distinguishes the sums that the residual stream makes at each
/// cut of a pipeline.
type Key<'a> = (Section, Option<u64>, [&'a str; 4], usize);

fn keys(arrays: &[HashedArray]) -> impl Iterator<Item = Key<'_>> {
    let mut before = None;
    let mut seen = BTreeMap::new();
    arrays.iter().map(move |array| {
        let HashedArray { section, micro_batch, module, operator, array, hash: _ } = array;
        let index = (*section, *micro_batch);
        let previous: Option<(_, &str)> = before.replace((index, module.as_str()));
        let previous = previous.filter(|(at, _)| *at == index && !operator.is_empty());
        let names = [module.as_str(), operator, array, previous.map_or("", |(_, module)| module)];
        let count = seen.entry((index, names)).or_insert(0);
        *count += 1;
        (*section, *micro_batch, names, *count)
    })
}

/// Reads a file of hashes; empty if there is no such file. `has_ended` is whether the run has ended: then an
/// incomplete last line is an error, while a killed run may leave one.
///
/// # Errors
/// The file cannot be read, or a line is damaged; the error names its number.
pub fn read(path: &Path, has_ended: bool) -> Result<Vec<HashedStep>> {
    let mut lines = match Lines::open(path, MOST_LINE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        lines => lines.unreadable(path)?,
    };
    let mut steps = Vec::<HashedStep>::new();
    while let Some(line) = lines.next_line().unreadable(path)? {
        let damaged = |reason: &str| {
            let number = line.number;
            let text = format!("line {number} is no line of hashes, so the file is damaged: {reason}");
            let source = std::io::Error::new(ErrorKind::InvalidData, text);
            TelemetryError::Unreadable(FileError { path: path.to_owned(), action: "read it", source })
        };
        match serde_json::from_slice::<HashedStep>(line.text) {
            Err(error) if error.is_eof() && !line.is_complete && !has_ended => break,
            Err(error) => return Err(damaged(&error.to_string())),
            Ok(step) if steps.last().is_some_and(|last| last.step >= step.step) => {
                return Err(damaged(&format!("its step {} is not after the one before", step.step)));
            }
            Ok(step) => steps.push(step),
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(section: Section, module: &str, hash: &str) -> HashedArray {
        HashedArray {
            section,
            micro_batch: None,
            module: module.to_owned(),
            operator: String::new(),
            array: format!("{module}.weight"),
            hash: hash.to_owned(),
        }
    }

    fn step(step: u64, hashes: &[(&str, &str)]) -> HashedStep {
        let arrays = hashes.iter().map(|(module, hash)| array(Section::Weights, module, hash)).collect();
        HashedStep { step, arrays }
    }

    #[test]
    fn the_first_array_that_differs_is_found() {
        let run = [step(10, &[("a", "1"), ("b", "2")]), step(20, &[("a", "3"), ("b", "4"), ("c", "5")])];
        let same = HashComparison { steps: 2, arrays: 5, unmatched: 0, parting: None };
        assert_eq!(compare(&run, &run), same);
        // Steps that only one run has hashed are left out.
        assert_eq!(compare(&run, &run[1..]).steps, 1);
        let other = [run[0].clone(), step(20, &[("a", "3"), ("b", "9"), ("c", "8")])];
        let parting = compare(&run, &other).parting.unwrap();
        assert_eq!((parting.step, parting.array.module.as_str(), parting.last_equal), (20, "b", Some(10)));
        assert_eq!((parting.counts, parting.only_in_one), ((2, 3), false));
        // Another weight, and a missing one.
        for other in [step(10, &[("a", "1"), ("x", "2")]), step(10, &[("a", "1")])] {
            let parting = compare(&run, &[other]).parting.unwrap();
            assert_eq!((parting.array.module.as_str(), parting.only_in_one), ("b", true));
        }
    }

    #[test]
    fn sums_at_the_cuts_of_a_pipeline_have_no_counterpart() {
        let forward = |modules: &[&str]| {
            let array = |module: &&str| HashedArray {
                operator: "op".to_owned(),
                // The sum is a different one after each module.
                hash: if *module == "residual" { modules.join(" ") } else { "1".to_owned() },
                ..array(Section::Forward, module, "")
            };
            [HashedStep { step: 1, arrays: modules.iter().map(array).collect() }]
        };
        let late = forward(&["a", "b", "residual", "c"]);
        let early = forward(&["a", "residual", "b", "c"]);
        let comparison = compare(&late, &early);
        assert_eq!((comparison.arrays, comparison.unmatched, comparison.parting), (1, 6, None));
        assert_eq!(compare(&late, &late).unmatched, 0);
    }

    #[test]
    fn damaged_lines_are_named_and_the_incomplete_one_of_a_killed_run_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let line = |number| serde_json::to_string(&step(number, &[("a", "1")])).unwrap() + "\n";
        let whole = line(1) + &line(2);
        let cut = whole.trim_end().len() - 3;
        // The steps of a killed run and of one that has ended; `None` where the file is damaged.
        for (text, killed, ended) in [
            (whole.as_str(), Some(2), Some(2)),
            (&whole[..cut], Some(1), None),
            ("", Some(0), Some(0)),
            (&whole.replacen('{', "[", 1), None, None),
            (&whole.replace("step", "stop"), None, None),
            (&(line(2) + &line(1)), None, None),
            (&(line(1) + "\n" + &line(2)), None, None),
            (&(line(1) + "\u{0}\u{0}\u{0}"), None, None),
        ] {
            std::fs::write(&path, text).unwrap();
            for (has_ended, steps) in [(false, killed), (true, ended)] {
                match (read(&path, has_ended), steps) {
                    (Ok(hashed), Some(steps)) => assert_eq!(hashed.len(), steps, "{text}"),
                    (Err(error), None) => {
                        assert!(error.to_string().contains("so the file is damaged"), "{error}")
                    }
                    (result, steps) => panic!("{text}: {result:?}, {steps:?}"),
                }
            }
        }
        assert!(read(&directory.path().join("none"), true).unwrap().is_empty());
    }
}
