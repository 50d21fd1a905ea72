//! The worker's side of a pipeline schedule: micro-batches on the device, and the phases of the step.

pub(crate) mod arrays;
pub mod first_batch;
pub(crate) mod numbers;
pub(crate) mod pairs;
pub(crate) mod pieces;
pub(crate) mod pixels;
pub(crate) mod results;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use autograd::precision::Autocast;
use autograd::{GradientSink, LossScale, Observer, Observers, Offload, Pass, PreferencePass};
use collective::{GridGroups, RankGrid};
use config::RunConfig;
use data::{MicroBatch, Prefetcher};
use device::{DType, Device, Mark, Written};
use parallel::data::MicroBatchSink;
use parallel::pipeline::{Action, ActionKind, ActionPart, Feed, ScratchSink};
use telemetry::Phase;
use tensor::Tensor;
use tensor::ops::routing::{Balance, TokenRows};

use crate::build;
use crate::dataset::Dataset;
use crate::error::{Result, WorkerError};
use crate::feed::arrays::{allocate, upload, upload_again};
use crate::feed::first_batch::{pass, pass_of, sequences};
use crate::feed::numbers::Numbers;
use crate::feed::pairs::PairWork;
use crate::feed::pieces::ContextPieces;
use crate::feed::pixels::PixelBuffer;
use crate::feed::results::Arriving;
use crate::graphs::Stop;
use crate::observers::hooks::{HookedSink, Moment, Moments};
use crate::observers::tensor_hashes::TensorHashes;
use crate::phases::Phases;
use crate::verification::Verification;

/// Returns the reader of a rank's micro-batches. While it waits for one, the rank is not taken for dead.
pub(crate) fn prefetcher(dataset: &Dataset, config: &RunConfig, groups: &mut GridGroups) -> Prefetcher {
    let watch = groups.control().watch();
    let data = Prefetcher::new(Arc::clone(&dataset.source), config.data.prefetch);
    data.while_waiting(move || watch.delay())
}

/// The times at which the parts of a step's actions began.
pub type Marks = Vec<(Action, ActionPart, Mark)>;

/// A rank's hook, and the names of its parameters by stage and use.
#[derive(Clone, Copy)]
pub(crate) struct HookContext<'a> {
    pub(crate) moments: &'a Moments,
    pub(crate) names: &'a BTreeMap<usize, Vec<String>>,
}

/// Returns stage and micro-batch of an action.
fn pass_of_action(action: Option<Action>) -> Option<(usize, usize)> {
    action.map(|action| (action.stage, action.micro_batch))
}

/// The worker's side of one pass through the schedule.
pub(crate) struct WorkerFeed<'a> {
    pub(crate) device: &'a Device,
    pub(crate) dataset: &'a Dataset,
    pub(crate) dtype: DType,
    autocast: Option<Arc<Autocast>>,
    pub(crate) numbers: Numbers<'a>,
    pub(crate) data: &'a mut Prefetcher,
    /// The memory of inputs that are pixels.
    pub(crate) pixels: Option<&'a mut PixelBuffer>,
    /// The micro-batches that are loaded, in their order ([`Executor::data_order`]).
    ///
    /// [`Executor::data_order`]: parallel::pipeline::Executor::data_order
    pub(crate) order: &'a [usize],
    pub(crate) phases: &'a mut Phases,
    /// Results of evaluated micro-batches.
    pub(crate) results: Arriving<'a>,
    /// The work of passes on pairs of answers, if the data is pairs.
    pub(crate) pairs: Option<PairWork<'a>>,
    /// The stage that computes losses.
    last_stage: usize,
    /// The label smoothing of training.
    pub(crate) label_smoothing: f32,
    /// Factors of the losses that balance loads, if there are any.
    pub(crate) balance: Option<Balance>,
    /// The host memory of activations of training, if they are offloaded.
    pub(crate) offload: Option<&'a Offload>,
    /// The last action that began.
    pub(crate) at: Option<Action>,
    /// Times at which the parts of actions began, if a benchmark asks for them.
    pub(crate) marks: Option<&'a mut Marks>,
    /// The hook that sees every step, if there is one.
    pub(crate) hook_context: Option<HookContext<'a>>,
    /// Observers of all operators.
    pub(crate) observers: &'a [Rc<dyn Observer>],
    /// Hashes of the operators' results.
    pub(crate) hashes: Option<&'a TensorHashes>,
    /// The factor of the loss in training, if there is one.
    pub(crate) loss_scale: Option<LossScale>,
    /// The number of targets of the step, if its loss is a mean over them.
    pub(crate) target_count: Option<Tensor>,
    /// The number of tokens of the step, if passes are to know which rows are tokens.
    pub(crate) token_count: Option<Tensor>,
    /// Records the micro-batch that is verified, if there is one.
    pub(crate) verification: Option<&'a Verification>,
    /// Whether micro-batches of training are those of a step, whose phases are timed.
    pub(crate) is_step: bool,
    /// Number of micro-batches that were loaded.
    loaded: usize,
    /// The pieces of sequences that are here, if sequences are computed in pieces.
    pieces: Option<ContextPieces>,
    /// The shares in the loss of the pieces of the micro-batch whose targets were asked for last.
    shares: Option<Vec<f32>>,
}

impl<'a> WorkerFeed<'a> {
    pub(crate) fn new(
        device: &'a Device,
        (config, dataset, grid): (&RunConfig, &'a Dataset, &RankGrid),
        numbers: Numbers<'a>,
        (data, order): (&'a mut Prefetcher, &'a [usize]),
        phases: &'a mut Phases,
    ) -> Self {
        WorkerFeed {
            device,
            dataset,
            dtype: config.precision.weight_dtype(),
            autocast: build::autocast(config),
            numbers,
            data,
            pixels: None,
            order,
            phases,
            results: Arriving::new(dataset.source.classes().is_some()),
            pairs: None,
            last_stage: config.stages() - 1,
            label_smoothing: 0.0,
            balance: None,
            offload: None,
            at: None,
            marks: None,
            hook_context: None,
            observers: &[],
            hashes: None,
            loss_scale: None,
            target_count: None,
            token_count: None,
            verification: None,
            is_step: true,
            loaded: 0,
            pieces: ContextPieces::of(config, grid),
            shares: None,
        }
    }

    /// Returns the recording of the present pass, its stage and its micro-batch's number, if it is verified.
    fn verified(&self) -> Option<(&'a Verification, usize, u64)> {
        let at = self.at?;
        let number = self.numbers.number(at.micro_batch);
        self.verification
            .filter(|verified| verified.is_of(number))
            .map(|verified| (verified, at.stage, number))
    }

    /// Returns a micro-batch, which was read ahead.
    fn load(&mut self, micro_batch: usize) -> Result<&MicroBatch> {
        let id = self.numbers.id(micro_batch);
        if !self.data.holds(id) {
            self.loaded += 1;
        }
        Ok(self.data.get(id, self.numbers.following(self.order, self.loaded))?)
    }

    /// The pairs of answers of a pass through the stage of `action`, which is the last.
    fn preference(&mut self, action: Action) -> Result<Option<PreferencePass>> {
        let Some(pairs) = self.pairs.filter(|_| action.stage == self.last_stage) else { return Ok(None) };
        let device = self.device;
        match device.is_meta() {
            true => pairs.allocate(device, sequences(self.dataset)).map(Some),
            false => pairs.upload(device, self.load(action.micro_batch)?),
        }
    }

    /// The pass of micro-batch `number`, which is `micro_batch` of the walk.
    fn pass_of_whole(&mut self, micro_batch: usize, number: u64) -> Result<Pass> {
        let device = self.device;
        if !self.dataset.source.packs_documents() {
            return pass_of(device, self.dataset, number);
        }
        self.stop(Stop::Documents(micro_batch), |feed| match device.is_meta() {
            true => pass_of(device, feed.dataset, number),
            false => pass(device, feed.load(micro_batch)?, number),
        })
    }

    /// Does work that differs from step to step, which is not captured.
    fn stop<T>(&mut self, stop: Stop, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        match self.phases.recorder() {
            Some(recorder) => recorder.pause(stop, || body(self)),
            None => body(self),
        }
    }

    /// Returns inputs that are pixels.
    fn pixel_inputs(&mut self, pixels: &mut PixelBuffer, micro_batch: usize) -> Result<Tensor> {
        self.stop(Stop::Inputs(micro_batch), |feed| match feed.device.is_meta() {
            true => pixels.imitate_fill(),
            false => pixels.fill(&feed.load(micro_batch)?.inputs),
        })?;
        let inputs = pixels.normalised(self.dtype)?;
        self.stop(Stop::PixelsRead, |_| pixels.end_read())?;
        Ok(inputs)
    }

    /// Does the work of a stop in a replayed step; `written` are the addresses of the arrays that it copies.
    ///
    /// # Errors
    /// Data that cannot be read; the device's.
    pub(crate) fn stop_again(&mut self, stop: Stop, written: &[Written]) -> Result<()> {
        let (device, dtype, is_meta) = (self.device, self.dtype, self.device.is_meta());
        let to = written.first().copied();
        match (stop, self.pixels.take()) {
            (Stop::Phase(phase), pixels) => {
                self.pixels = pixels;
                return self.phases.enter_again(phase);
            }
            (Stop::Inputs(micro_batch), Some(pixels)) => {
                let filled = match is_meta {
                    true => pixels.imitate_fill(),
                    false => self.load(micro_batch).and_then(|batch| pixels.fill(&batch.inputs)),
                };
                self.pixels = Some(pixels);
                return filled;
            }
            (Stop::PixelsRead, Some(pixels)) => {
                let ended = pixels.end_read();
                self.pixels = Some(pixels);
                return ended;
            }
            (_, pixels) => self.pixels = pixels,
        }
        let Some(to) = to else { return Ok(()) };
        match stop {
            Stop::Inputs(micro_batch) => upload_again(device, &self.load(micro_batch)?.inputs, dtype, to),
            Stop::Targets(micro_batch) => upload_again(device, &self.load(micro_batch)?.targets, dtype, to),
            Stop::Documents(micro_batch) => match &self.load(micro_batch)?.documents {
                Some(documents) => upload_again(device, documents, DType::F32, to),
                None => Ok(()),
            },
            Stop::Tokens(micro_batch) => match &self.load(micro_batch)?.tokens {
                Some(tokens) => upload_again(device, tokens, DType::F32, to),
                None => Ok(()),
            },
            Stop::Phase(_)
            | Stop::PixelsRead
            | Stop::TargetCount
            | Stop::Snapshot
            | Stop::LearningRate
            | Stop::Results => Ok(()),
        }
    }

    /// The rows of micro-batch `micro_batch` of the walk that are tokens, if passes are to know them.
    fn token_rows(&mut self, micro_batch: usize) -> Result<Option<TokenRows>> {
        let Some(count) = self.token_count.clone() else { return Ok(None) };
        let (device, shape) = (self.device, self.dataset.source.shape().inputs);
        let pieces = self.pieces.clone();
        let mask = self.stop(Stop::Tokens(micro_batch), |feed| {
            let marks = if device.is_meta() { None } else { feed.load(micro_batch)?.tokens.as_ref() };
            match (marks, &pieces) {
                (Some(marks), Some(pieces)) => pieces.upload(device, marks),
                (Some(marks), None) => upload(device, marks, DType::F32),
                (None, Some(pieces)) => pieces.allocate(device, &shape),
                (None, None) => allocate(device, &shape, DType::F32),
            }
        })?;
        Ok(Some(TokenRows { mask, count }))
    }

    /// [`WorkerFeed::pass_of_whole`] of sequences in pieces.
    fn pass_of_pieces(&mut self, pieces: &ContextPieces, micro_batch: usize, number: u64) -> Result<Pass> {
        let (device, shares, trains) = (self.device, self.shares.take(), self.numbers.trains());
        let (shape, masks) = (self.dataset.source.shape(), self.dataset.source.packs_documents());
        let documents = match masks && !device.is_meta() {
            true => self.load(micro_batch)?.documents.as_ref(),
            false => None,
        };
        let pieces = pieces.of_pass(device, &shape.inputs, (documents, masks), shares, trains)?;
        Ok(Pass { micro_batch: number, pieces: Some(pieces), ..Pass::default() })
    }
}

impl Feed for WorkerFeed<'_> {
    type Error = WorkerError;

    fn enter(&mut self, action: Action, part: ActionPart) -> Result<()> {
        let before = self.at.replace(action);
        if !(self.numbers.trains() && self.is_step) {
            return Ok(());
        }
        // A transfer overlaps compute, but not on a host.
        if part == ActionPart::Moving && self.device.is_cuda_like() {
            return Ok(());
        }
        if let Some(marks) = self.marks.as_mut() {
            marks.push((action, part, self.device.mark()?));
        }
        if before.map_or(0, |at| at.stage) != action.stage {
            self.phases.stage(action.stage);
        }
        if before.is_none_or(|at| at.micro_batch != action.micro_batch) {
            self.phases.micro_batch(action.micro_batch);
        }
        let computing = match action.kind {
            ActionKind::Forward => Phase::Forward,
            _ => Phase::Backward,
        };
        match part {
            ActionPart::Inputs => self.phases.enter(Phase::Inputs)?,
            ActionPart::Waiting | ActionPart::Moving => self.phases.enter(Phase::Pipeline)?,
            ActionPart::Computing => self.phases.enter_pass(computing)?,
        }
        if let (Some(HookContext { moments, .. }), ActionPart::Computing) = (&self.hook_context, part) {
            let is_forward = computing == Phase::Forward;
            let moment = if is_forward { Moment::BeforeForward } else { Moment::BeforeBackward };
            moments.at(moment, pass_of_action(Some(action)));
        }
        Ok(())
    }

    fn leave(&mut self, action: Action) {
        if let Some(HookContext { moments, .. }) = &self.hook_context {
            let is_forward = action.kind == ActionKind::Forward;
            let moment = if is_forward { Moment::AfterForward } else { Moment::AfterBackward };
            moments.at(moment, pass_of_action(Some(action)));
        }
    }

    fn inputs(&mut self, micro_batch: usize) -> Result<Tensor> {
        let (device, dtype) = (self.device, self.dtype);
        if let Some(pieces) = self.pieces.clone() {
            return match device.is_meta() {
                true => pieces.allocate(device, &self.dataset.source.shape().inputs),
                false => pieces.upload(device, &self.load(micro_batch)?.inputs),
            };
        }
        if let Some(pixels) = self.pixels.take() {
            let inputs = self.pixel_inputs(&mut *pixels, micro_batch);
            self.pixels = Some(pixels);
            return inputs;
        }
        self.stop(Stop::Inputs(micro_batch), |feed| match device.is_meta() {
            true => allocate(device, &feed.dataset.source.shape().inputs, dtype),
            false => upload(device, &feed.load(micro_batch)?.inputs, dtype),
        })
    }

    fn targets(&mut self, micro_batch: usize) -> Result<Tensor> {
        if let Some(pieces) = self.pieces.clone() {
            if self.device.is_meta() {
                return pieces.allocate(self.device, &self.dataset.source.shape().targets);
            }
            let device = self.device;
            let targets = &self.load(micro_batch)?.targets;
            let (shares, targets) = (pieces.shares(targets)?, pieces.upload(device, targets)?);
            self.shares = Some(shares);
            return Ok(targets);
        }
        let (device, dtype) = (self.device, self.dtype);
        self.stop(Stop::Targets(micro_batch), |feed| match device.is_meta() {
            true => allocate(device, &feed.dataset.source.shape().targets, dtype),
            false => upload(device, &feed.load(micro_batch)?.targets, dtype),
        })
    }

    fn pass(&mut self, action: Action) -> Result<Pass> {
        let number = self.numbers.number(action.micro_batch);
        let pass = match &self.pieces {
            Some(pieces) => self.pass_of_pieces(&pieces.clone(), action.micro_batch, number)?,
            None => self.pass_of_whole(action.micro_batch, number)?,
        };
        let (preference, tokens) = (self.preference(action)?, self.token_rows(action.micro_batch)?);
        // A bit that a test inverts is inverted before others see it.
        let verified = self.verification.and_then(|verified| verified.of_stage(action.stage, number));
        let hashes = self.hashes.map(|hashes| hashes.of_stage(action.stage));
        let observers = verified.into_iter().chain(self.observers.iter().cloned()).chain(hashes);
        let observers = Observers::new(observers);
        let (label_smoothing, loss_scale) = (self.label_smoothing, self.loss_scale.clone());
        let (balance, autocast, offload) = (self.balance, self.autocast.clone(), self.offload.cloned());
        let is_padding = !self.numbers.is_own(action.micro_batch);
        let target_count = self.target_count.clone();
        let pass = Pass { preference, is_padding, target_count, tokens, ..pass };
        Ok(Pass { observers, label_smoothing, loss_scale, balance, autocast, offload, ..pass })
    }

    fn sink<'s>(&'s mut self, sink: MicroBatchSink<'s>, reduces: bool) -> Box<dyn GradientSink + 's> {
        let pass = pass_of_action(self.at);
        let verified = self.verified();
        let sink: Box<dyn GradientSink + 's> = Box::new(self.phases.sink(sink, reduces));
        let sink = match &self.hook_context {
            None => sink,
            Some(HookContext { moments, names }) => {
                let names = pass.and_then(|(stage, _)| names.get(&stage));
                Box::new(HookedSink { sink, moments, names: names.map_or(&[], Vec::as_slice), pass })
            }
        };
        match verified {
            Some((verification, stage, number)) => verification.sink(sink, stage, number),
            None => sink,
        }
    }

    fn scratch_sink<'s>(&'s mut self, sink: ScratchSink<'s>) -> Box<dyn GradientSink + 's> {
        match self.verified() {
            Some((verification, stage, number)) => verification.sink(Box::new(sink), stage, number),
            None => Box::new(sink),
        }
    }

    fn predicted(&mut self, prediction: &Tensor, targets: &Tensor) -> Result<()> {
        self.results.predicted(prediction, targets)
    }

    fn loss(&mut self, _micro_batch: usize, loss: &Tensor) -> Result<()> {
        self.stop(Stop::Results, |feed| feed.results.loss(feed.device, loss))
    }
}
