//! Trains a small GPT on two ranks, without a configuration, a plan or a worker: data, passes, sums of
//! gradients over ranks, and updates, in one file.
//!
//! `cargo run --release -p plimsoll-parallel --example two_ranks`
//!
//! The ranks are threads. Each runs half of a step's micro-batches, in two of the four lanes. Lanes are added
//! in a fixed tree, so one rank gets the same weights, bit for bit, which the program checks.

use std::error::Error;
use std::io::Write;

use autograd::{Mode, Tape};
use collective::threads::{self, Options};
use collective::{Axis, Communicator, GridGroups, RankGrid};
use device::{Category, DType, Device, DeviceOptions};
use nn::layers::Activation;
use nn::models::{Gpt, GptSizes, PositionKind};
use nn::{Input, Model, Parameters, Stage};
use optim::{Decay, GradientNorm, Optimizer, Schedule, Slot, UpdateRule};
use parallel::data::{Assignment, BucketEnd, GradientReduction, Reduction, ReductionOptions};
use tensor::Tensor;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Training text, whose bytes are the tokens.
const TEXT: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/two_ranks.rs"));

const SIZES: GptSizes = GptSizes {
    layers: 2,
    heads: 2,
    width: 32,
    context: 32,
    max_context: 0,
    positions: PositionKind::Learned,
    biases: true,
    tied: true,
    activation: Activation::Gelu,
    dropout: 0.0,
    logit_soft_cap: 0.0,
    loss_pieces: 1,
    base_width: 0,
    base_head_width: 0,
    vocabulary: 256,
};

const STEPS: u64 = 60;
/// Micro-batches of a step, over all ranks, and as many lanes.
const MICRO_BATCHES: usize = 4;
/// Sequences of a micro-batch.
const ROWS: usize = 4;
const SEED: u64 = 1;

/// Results of a rank.
struct Trained {
    /// Loss of each step.
    losses: Vec<f32>,
    /// Bits of all weights.
    weights: Vec<u32>,
}

/// Inputs and targets `[ROWS, context]` of a micro-batch, which are functions of its number.
fn micro_batch(device: &Device, number: u64) -> Result<[Tensor; 2]> {
    let length = SIZES.context;
    let starts = (0..ROWS as u64).map(|row| {
        let scrambled = (number * ROWS as u64 + row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        scrambled as usize % (TEXT.len() - length)
    });
    let starts: Vec<usize> = starts.collect();
    let tensor = |shift: usize| {
        let tokens = starts.iter().flat_map(|start| &TEXT[start + shift..start + shift + length]);
        let tokens: Vec<u32> = tokens.copied().map(u32::from).collect();
        Tensor::from_host(device, &tokens, [ROWS, length], Category::Input)
    };
    Ok([tensor(0)?, tensor(1)?])
}

/// Options of the sums of gradients on one rank.
fn reduction_options(assignment: Assignment, rank: usize) -> ReductionOptions {
    ReductionOptions {
        assignment,
        rank,
        dtype: DType::F32,
        bucket_end: BucketEnd::Bytes(1 << 16),
        reduction: Reduction::Tree,
        zero_stage: 0,
        loss: true,
        loss_values: 1,
    }
}

/// Trains as one rank of the communicator's world.
fn train(communicator: Communicator) -> Result<Trained> {
    let rank = communicator.rank();
    let ranks = communicator.world_size();
    let device = Device::cpu(rank, &DeviceOptions::default())?;

    // Initial values are functions of the seed and a parameter's name, so all ranks have the same.
    let parameters = Parameters::new(&device, SEED, DType::F32);
    let model = Gpt::new(parameters, SIZES, &Stage::whole(SIZES.layers))?;
    let assignment = Assignment::contiguous(MICRO_BATCHES, ranks);
    let mut reduction =
        GradientReduction::new(&device, model.parameters(), reduction_options(assignment, rank))?;

    let mut slots = Vec::new();
    for parameter in model.parameters().list() {
        let weight = parameter.weight.tensor()?;
        slots.push(Slot { name: parameter.name.clone(), weight, decay: !parameter.role.is_vector() });
    }
    let rule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let optimizer = Optimizer::new(&device, &slots, rule)?;
    let norm = GradientNorm::new(&device, &slots, 1.0)?;
    let schedule = Schedule {
        peak: 1e-2,
        start: 0,
        warmup_steps: 5,
        decay: Decay::Cosine { minimum: 1e-3, steps: STEPS },
    };

    let groups = GridGroups::new(communicator, RankGrid::new(&[(Axis::Data, ranks)], rank)?)?;
    let group = groups.divided(Axis::Data)?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        for number in assignment.numbers(rank) {
            let [inputs_bl, targets_bl] = micro_batch(&device, step * MICRO_BATCHES as u64 + number as u64)?;
            let tape = Tape::new(&device, Mode::Train);
            let prediction = model.forward(&tape, Input::Batch(inputs_bl))?;
            let loss = model.loss(&tape, prediction, &targets_bl, 1.0 / MICRO_BATCHES as f32)?;
            let value = loss.tensor().clone();
            // Full buckets are summed over ranks while backward computes the next ones.
            tape.backward(loss, &mut reduction.sink(&group))?;
            reduction.end_micro_batch(Some(&value))?;
        }
        reduction.finish(&group)?;
        norm.measure(reduction.gradients())?;
        norm.state().set_learning_rate(schedule.rate(step))?;
        optimizer.step(reduction.gradients(), norm.state())?;
        let loss = reduction.loss().ok_or("the last stage sums the loss")?;
        losses.extend(loss.to_vec::<f32>()?);
    }
    let mut weights = Vec::new();
    for slot in &slots {
        weights.extend(slot.weight.to_vec::<f32>()?.into_iter().map(f32::to_bits));
    }
    Ok(Trained { losses, weights })
}

/// Trains on one rank and on two, and compares weights and losses.
fn compare() -> Result<Trained> {
    let [alone, together] = [1, 2].map(|ranks| threads::run(ranks, Options::default(), train));
    let alone = alone.map_err(|error| error.to_string())?.remove(0);
    for (rank, trained) in together.map_err(|error| error.to_string())?.iter().enumerate() {
        if trained.weights != alone.weights || trained.losses != alone.losses {
            return Err(format!("rank {rank} of two has other weights than one rank alone").into());
        }
    }
    Ok(alone)
}

fn main() -> Result<()> {
    let Trained { losses, weights } = compare()?;
    let mut out = std::io::stdout().lock();
    for (step, loss) in losses.iter().enumerate().step_by(10) {
        writeln!(out, "step {step}: loss {loss:.4}")?;
    }
    Ok(writeln!(out, "one rank and two have the same {} weights", weights.len())?)
}

#[test]
fn two_ranks_learn_and_have_the_weights_of_one() {
    let losses = compare().unwrap().losses;
    let first = losses.first().unwrap();
    let last = losses.last().unwrap();
    assert!(last < &(0.7 * first), "the loss went from {first} to {last}");
}
