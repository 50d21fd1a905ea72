//! Loads a run's state, or the weights of a model that is not trained.
//!
//! The one idea: **ranks that hold the same elements read each of them once**. Every rank reads its own
//! shards, and an equal part of the arrays that other ranks hold too. The ranks then exchange these parts.
//! All ranks read small arrays and arrays in host pools. Weights that are rounded copies of master weights
//! are cast from them. Nothing is allocated on a device, and GPUs open no connection that steps do not use:
//! ranks that do not send each other tensors (`Engine::has_peers`) broadcast over the connections of their
//! sums.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Checkpoint, Target};
use collective::{Axis, ProcessGroup};
use device::{DType, Device, StreamKind};
use nn::{Lora, Model};
use optim::AVERAGE_PREFIX;
use parallel::data::{WeightUnits, broadcast_parts, gather_parts};
use system::numbers::megabytes_of;
use system::pace::Pace;
use tensor::Tensor;

use crate::engine::Engine;
use crate::error::Result;
use crate::setup::start::{Averaged, Layered, Start, Weights};
use crate::state::answering::Answers;
use crate::state::records::RecordTarget;
use crate::state::targets::Targets;
use crate::worker::Worker;

/// Maximum number of elements read between two answers to other ranks.
const PIECE: usize = 1 << 22;
/// Size in bytes below which arrays are read by all ranks instead of exchanged.
const SMALL: usize = 1 << 16;
/// Maximum bytes that a rank sends to each other rank in one exchange, unless a single chunk is larger.
const ROUND: usize = 1 << 24;

impl Worker {
    /// Loads the initial state of the run.
    ///
    /// # Errors
    /// Weights cannot be read or belong to another model, or a rank or the transport fails.
    pub fn begin(&mut self) -> Result<()> {
        match self.setup().start.clone() {
            Start::Drawn => Ok(()),
            Start::Weights(weights) => {
                // Adapters that are not there start as in any run.
                let mut targets = Targets::of_weights(self)?;
                targets.retain(|name| weights.has(name) || !Lora::is_adapter(name));
                self.take(&*weights, targets)?;
                self.begin_averages()
            }
            Start::Resumed(point) => self.restore(&point.checkpoint),
        }
    }

    /// Restores the entire state from a checkpoint. Averages that it lacks begin as copies of the weights.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let weights = Layered::new(Arc::new(checkpoint.clone()), self.setup().base.clone());
        let mut targets = Targets::from_worker(self)?;
        match Averaged::is_in(checkpoint) {
            true => self.take(&weights, targets)?,
            false => {
                targets.retain(|name| !name.starts_with(AVERAGE_PREFIX));
                self.take(&weights, targets)?;
                self.begin_averages()?;
            }
        }
        checkpoint.loss_scale().map_or(Ok(()), |scale| self.set_loss_scale(scale))?;
        self.set_updates(checkpoint.updates())
    }

    /// Loads `targets`, and rounds master weights to the compute weights.
    pub(crate) fn take(&mut self, weights: &dyn Weights, targets: Targets) -> Result<()> {
        load(self.engine(), targets, weights)?;
        self.round_weights()?;
        self.engine().settle()
    }

    /// Quantizes the randomly drawn weights, if weights are quantized.
    ///
    /// # Errors
    /// The device or the transport fails.
    pub(crate) fn encode_drawn(&mut self) -> Result<()> {
        let is_coded = self.setup().config.tuning.lora().is_some_and(|lora| lora.base.is_some());
        if !is_coded || self.engine().device.is_meta() {
            return Ok(());
        }
        let records = Targets::from_worker(self)?.records;
        let mut answers = Answers::new(self.engine().groups.control());
        records.iter().try_for_each(|record| record.encode(None, &mut || answers.answer()))?;
        answers.finish()?;
        self.outdate_weights();
        Ok(())
    }
}

/// Loads the models of a rank that does not train. Each comes with the rank's shards of its weights if
/// weights are sharded. Every rank must call this.
pub fn load_models<'a>(
    engine: &mut Engine,
    models: impl Iterator<Item = (&'a dyn Model, Option<&'a WeightUnits>)>,
    weights: &dyn Weights,
) -> Result<()> {
    let mut targets = Targets::default();
    for (model, units) in models {
        targets.add_model(model, units)?;
    }
    load(engine, targets, weights)?;
    engine.settle()
}

/// Reads this rank's part of `targets`, and exchanges it with the other ranks once all have read. Meanwhile
/// answers the others, whose disks may be slower.
fn load(engine: &mut Engine, mut targets: Targets, weights: &dyn Weights) -> Result<()> {
    let records = targets.take_records(weights);
    let data = engine.groups.divided(Axis::Data)?;
    let device = engine.device.clone();
    let share = |targets: &[Target], group: ProcessGroup| -> Result<(Share, ProcessGroup)> {
        Ok((Share::new(targets, group.world_size(), &device)?, group))
    };
    let shares = [share(&targets.everywhere, data.all)?, share(&targets.in_groups, data.across)?];
    let mut own = Vec::new();
    for (share, group) in &shares {
        own.extend(share.rank_targets(group.rank()).cloned());
    }
    let mut answers = Answers::new(engine.groups.control());
    weights.load(&mut with_progress(own, weights.path()).inspect(|_| answers.answer()))?;
    encode(&records, weights, &mut || answers.answer())?;
    answers.finish()?;
    // The kernels of a broadcast, which no step uses, are loaded now.
    engine.device.connecting(|| {
        let exchange = |(share, group): (Share, ProcessGroup)| share.exchange(&group, engine.has_peers);
        shares.into_iter().try_for_each(exchange)
    })
}

/// Quantizes `records` from the values of `weights`, and logs progress.
fn encode(records: &[RecordTarget], weights: &dyn Weights, on_piece: &mut dyn FnMut()) -> Result<()> {
    let bytes = |record: &RecordTarget| (DType::F32.bytes() * record.values.codes.elements()) as u64;
    let all = records.iter().map(bytes).sum();
    let pace = Pace::of_files();
    let mut done = 0;
    for record in records {
        if pace.is_due() {
            tracing::info!("encoding {}: {}", weights.path().display(), megabytes_of(done, all));
        }
        record.encode(Some(weights), on_piece)?;
        done += bytes(record);
    }
    Ok(())
}

/// How ranks with the same arrays divide the reading.
struct Share {
    /// Chunks that every rank reads.
    by_all: Vec<Target>,
    /// Chunks that each rank reads for all others; empty for one rank.
    by_rank: Vec<Vec<Target>>,
}

impl Share {
    /// Divides `targets` among `ranks` ranks, in contiguous parts of about equal bytes. Only tensors on
    /// `device` are exchanged.
    fn new(targets: &[Target], ranks: usize, device: &Device) -> Result<Self> {
        let is_small = |target: &&Target| {
            ranks == 1 || target.tensor.bytes() < SMALL || !target.tensor.device().is(device)
        };
        let (small, large): (Vec<_>, Vec<_>) = targets.iter().partition(is_small);
        let mut by_all = Vec::new();
        for target in small {
            by_all.extend(pieces(target, 0..target.tensor.elements())?);
        }
        let all: usize = large.iter().map(|target| target.tensor.bytes()).sum();
        let mut by_rank = vec![Vec::new(); if ranks == 1 { 0 } else { ranks }];
        for (rank, own) in by_rank.iter_mut().enumerate() {
            let [first, end] = [rank, rank + 1].map(|rank| all * rank / ranks);
            let mut before = 0;
            for target in &large {
                let [first, end] = [first, end].map(|byte| row_at(target, byte.saturating_sub(before)));
                own.extend(pieces(target, first..end)?);
                before += target.tensor.bytes();
            }
        }
        Ok(Share { by_all, by_rank })
    }

    /// Returns the chunks that a rank reads.
    fn rank_targets(&self, rank: usize) -> impl Iterator<Item = &Target> {
        self.by_all.iter().chain(self.by_rank.get(rank).into_iter().flatten())
    }

    /// Sends every rank of `group` the chunks that the others have read, in rounds of bounded size.
    fn exchange(&self, group: &ProcessGroup, has_peers: bool) -> Result<()> {
        let mut rounds: Vec<_> = self.by_rank.iter().map(|pieces| rounds(pieces).into_iter()).collect();
        loop {
            let parts: Vec<_> = rounds.iter_mut().map(|of| of.next().unwrap_or_default()).collect();
            if parts.iter().all(Vec::is_empty) {
                return Ok(());
            }
            match has_peers {
                true => gather_parts(group, &parts)?,
                false => broadcast_parts(group, &parts)?,
            }
            group.synchronize(StreamKind::Reduce)?;
        }
    }
}

/// Returns the first element of the row of `target` that contains byte `byte`, or the target's end. Reads are
/// aligned to rows, because folders with transposed matrices are read by whole rows.
fn row_at(target: &Target, byte: usize) -> usize {
    let Target { first, tensor, shape, .. } = target;
    let element = byte / tensor.dtype().bytes();
    if element >= tensor.elements() {
        return tensor.elements();
    }
    element.saturating_sub((first + element) % shape.columns().max(1))
}

/// Splits the elements `range` of `target` into chunks.
fn pieces(target: &Target, range: Range<usize>) -> Result<Vec<Target>> {
    let piece = |at: usize| {
        let tensor = target.tensor.view(at, [PIECE.min(range.end - at)])?;
        Ok(Target { first: target.first + at, tensor, ..target.clone() })
    };
    range.clone().step_by(PIECE).map(piece).collect()
}

/// Groups the tensors of `pieces` into rounds of bounded size.
fn rounds(pieces: &[Target]) -> Vec<Vec<Tensor>> {
    let mut rounds = Vec::<Vec<Tensor>>::new();
    let mut bytes = usize::MAX;
    for Target { tensor, .. } in pieces {
        match rounds.last_mut().filter(|_| bytes.saturating_add(tensor.bytes()) <= ROUND) {
            Some(round) => {
                round.push(tensor.clone());
                bytes += tensor.bytes();
            }
            None => {
                rounds.push(vec![tensor.clone()]);
                bytes = tensor.bytes();
            }
        }
    }
    rounds
}

/// Returns `targets` one by one, and logs the progress of reading `path`.
fn with_progress(targets: Vec<Target>, path: &Path) -> impl Iterator<Item = Target> {
    let bytes = |target: &Target| (target.dtype.bytes() * target.tensor.elements()) as u64;
    let all = targets.iter().map(bytes).sum();
    let pace = Pace::of_files();
    let mut done = 0;
    targets.into_iter().inspect(move |target| {
        if pace.is_due() {
            tracing::info!("reading {}: {}", path.display(), megabytes_of(done, all));
        }
        done += bytes(target);
    })
}
