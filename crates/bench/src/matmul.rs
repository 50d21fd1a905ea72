//! Measures each matmul of a training step with several of the library's algorithms, and builds a table of
//! those faster than the library's first choice.

mod operands;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use collective::Communicator;
use device::cuda::PlannedMatmul;
use device::matmul_table::{Choice, MatmulKey, MatmulTable};
use device::{Device, StreamKind};

use crate::error::{BenchError, Result};
use crate::options::{BenchOptions, median};
use crate::steps::timed_steps;
use config::RunConfig;
use operands::COLD_BYTES;
pub(crate) use operands::{Noise, Operands};
use run::ChosenPlacement;
use run::Startup;
use worker::Worker;

/// Another algorithm is kept if its time is below this fraction of the first choice's; smaller gains are
/// noise.
const WORTH: f64 = 0.99;
/// Number of rounds in which all algorithms of a matmul alternate, and of calls per algorithm and round.
const TURNS: usize = 5;
const CALLS: usize = 4;
/// Maximum difference between the outputs' sums of two algorithms, relative to the largest sum.
const TOLERANCE: f32 = 0.02;
/// Number of alternating rounds if each algorithm is called for a duration.
const LONG_TURNS: usize = 2;
/// Number of calls enqueued together if each algorithm is called for a duration, and number of such batches
/// in flight.
const BATCH: usize = 8;
const BATCHES: usize = 3;
/// Number of times that steps are measured with each table, alternating.
const ROUNDS: usize = 2;

/// Limits on how many algorithms to try for each matmul, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct MatmulOptions {
    /// Maximum number of algorithms tried for each matmul.
    pub candidates: usize,
    /// Duration for which each algorithm is called without a pause, so that the device is as hot and as
    /// power-limited as in a step; algorithms that need less energy are then faster. `None` means a few
    /// alternating calls with pauses.
    pub sustained: Option<Duration>,
}

/// Measured times of one matmul of a step.
#[derive(Clone, Debug)]
pub struct MatmulTime {
    /// Shape, dtypes and epilogue of the matmul.
    pub key: MatmulKey,
    /// Number of calls in a step.
    pub calls: u64,
    /// Number of algorithms tried.
    pub tried: usize,
    /// Milliseconds of a call with the library's first choice.
    pub first: f64,
    /// Milliseconds of the fastest algorithm.
    pub best: f64,
    /// The best algorithm, if it deserves an entry in the table.
    pub choice: Option<Choice>,
}

/// Result of measuring the matmuls of a step.
#[derive(Clone, Debug)]
pub struct MatmulMeasure {
    /// Model of the device.
    pub model: String,
    /// Versions of the compute libraries.
    pub libraries: String,
    /// Times of each matmul.
    pub matmuls: Vec<MatmulTime>,
    /// Seconds of each step timed with the library's first choices.
    pub without: Vec<f64>,
    /// Seconds of each step timed with the new table.
    pub with: Vec<f64>,
    /// The table of algorithms that were kept.
    pub table: MatmulTable,
}

impl MatmulMeasure {
    /// Returns the median seconds of a step without and with the table.
    pub fn medians(&self) -> (f64, f64) {
        (median(&self.without), median(&self.with))
    }
}

/// Measures algorithms for each matmul of a step of `config`.
///
/// # Errors
/// A run fails, or the device is not a GPU.
pub fn bench_matmul(
    mut config: RunConfig,
    options: &BenchOptions,
    tried: MatmulOptions,
) -> Result<MatmulMeasure> {
    config.train.steps = u64::MAX;
    let ChosenPlacement { placement, reason } =
        ChosenPlacement::find(options.device, &mut config, &Startup::alone(), None)?;
    if placement.description().kind != device::Kind::Cuda {
        return Err(BenchError::Refused(format!("bench matmul needs a GPU: {reason}")));
    }
    let setup = plan::prepare(config, placement)?;
    run::prepare_kernels(&setup)?;
    let mut worker = Worker::new(&setup, Communicator::solo())?;
    let device = worker.device().clone();
    let MatmulTable { device: model, library, .. } = device.matmul_table()?;
    let empty = MatmulTable::empty(&model, library);
    device.set_matmul_table(empty.clone())?;
    worker.step(0)?;
    let planned = device.planned_matmuls()?;
    let noise = Noise::new(&device)?;
    let mut matmuls = Vec::new();
    for planned in planned {
        matmuls.push(measure(&device, &noise, planned, &empty, tried)?);
    }
    drop(noise);
    let mut table = empty.clone();
    let chosen = matmuls.iter().filter_map(|matmul| Some((matmul.key, matmul.choice.clone()?)));
    table.choices.extend(chosen);
    let mut without = Vec::new();
    let mut with = Vec::new();
    for _ in 0..ROUNDS {
        for (table, seconds) in [(&empty, &mut without), (&table, &mut with)] {
            device.set_matmul_table(table.clone())?;
            seconds.extend(timed_steps(&mut worker, &mut None, options)?.seconds);
        }
    }
    let libraries = device.description().libraries.clone();
    Ok(MatmulMeasure { model, libraries, matmuls, without, with, table })
}

/// Times the library's algorithms for one matmul. Finds the fastest whose results are repeatable and agree
/// with the first choice's.
fn measure(
    device: &Device,
    noise: &Noise,
    planned: PlannedMatmul,
    empty: &MatmulTable,
    options: MatmulOptions,
) -> Result<MatmulTime> {
    let PlannedMatmul { key, calls, .. } = planned;
    let sets = Operands::sets(device, noise, key, COLD_BYTES)?;
    device.set_matmul_table(empty.clone())?;
    let expected = sets[0].sums(key)?;
    let mut candidates = vec![(None, empty.clone(), Vec::new())];
    for choice in device.matmul_choices(key, options.candidates)?.into_iter().skip(1) {
        let table = one(empty, key, &choice);
        device.set_matmul_table(table.clone())?;
        let sums = sets[0].sums(key)?;
        let again = sets[0].sums(key)?;
        let taken = device.planned_matmuls()?.iter().any(|planned| planned.key == key && planned.from_table);
        if taken && same_bits(&sums, &again) && close(&expected, &sums) {
            candidates.push((Some(choice), table, Vec::new()));
        }
    }
    for _ in 0..options.sustained.map_or(TURNS, |_| LONG_TURNS) {
        for (_, table, times) in &mut candidates {
            device.set_matmul_table(table.clone())?;
            sets[0].call(key)?;
            match options.sustained {
                None => times.extend(few(device, &sets, key)?),
                Some(time) => times.push(sustained(device, &sets, key, time)?),
            }
        }
    }
    let times: Vec<f64> = candidates.iter().map(|(_, _, times)| median(times)).collect();
    let first = times.first().copied().unwrap_or(f64::NAN);
    let best = times.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
    let (index, best) = best.map_or((0, first), |(index, best)| (index, *best));
    let choice = candidates.into_iter().nth(index).and_then(|(choice, ..)| choice);
    let choice = choice.filter(|_| best < WORTH * first).map(|choice| {
        let note = format!("{:.3} of the first choice's time: {}", best / first, choice.note);
        Choice { note, ..choice }
    });
    Ok(MatmulTime { key, calls, tried: times.len(), first, best, choice })
}

/// Returns the milliseconds of each of a few calls.
fn few(device: &Device, sets: &[Operands], key: MatmulKey) -> Result<Vec<f64>> {
    device.begin_profile();
    (0..CALLS).try_for_each(|call| sets[call % sets.len()].call(key))?;
    Ok(device.end_profile()?.iter().map(|call| f64::from(call.milliseconds)).collect())
}

/// Returns the milliseconds per call during the second half of `time`.
fn sustained(device: &Device, sets: &[Operands], key: MatmulKey, time: Duration) -> Result<f64> {
    let mut calls = 0;
    let mut under_way = VecDeque::new();
    let mut half = None;
    let began = Instant::now();
    loop {
        for call in calls..calls + BATCH {
            sets[call % sets.len()].call(key)?;
        }
        calls += BATCH;
        under_way.push_back(device.record(StreamKind::Compute)?);
        if under_way.len() < BATCHES {
            continue;
        }
        under_way.pop_front().map_or(Ok(()), |batch| device.wait_on_host(&batch))?;
        let now = Instant::now();
        match half {
            None if now - began >= time / 2 => half = Some((now, calls)),
            Some((since, before)) if now - began >= time => {
                return Ok(1e3 * (now - since).as_secs_f64() / (calls - before) as f64);
            }
            _ => {}
        }
    }
}

fn one(empty: &MatmulTable, key: MatmulKey, choice: &Choice) -> MatmulTable {
    let mut table = empty.clone();
    table.choices.insert(key, choice.clone());
    table
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|sum| sum.to_bits()).eq(b.iter().map(|sum| sum.to_bits()))
}

fn close(expected: &[f32], actual: &[f32]) -> bool {
    let largest = expected.iter().copied().fold(0.0_f32, f32::max);
    expected.iter().zip(actual).all(|(expected, actual)| (expected - actual).abs() <= TOLERANCE * largest)
}
