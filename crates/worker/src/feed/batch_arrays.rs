//! Copies the arrays of micro-batches to the device.

use std::borrow::Cow;
use std::rc::Rc;

use autograd::{LaterTokens, Pass, PreferencePass};
use data::{ArrayShape, BatchShape, HostArray, MicroBatch};
use device::{DType, Device};
use parallel::pipeline::Action;
use tensor::Tensor;
use tensor::ops::routing::TokenRows;

use super::arrays::{allocate, fill};
use super::batches::MicroBatches;
use super::later_tokens::LaterArray;
use super::pairs::PairWork;
use super::pieces::ContextPieces;
use super::pixels::PixelBuffer;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::graphs::Recorder;

/// Copies the arrays of a schedule's micro-batches to the device.
pub(crate) struct BatchArrays {
    pub(crate) device: Device,
    pub(crate) recorder: Recorder,
    pub(crate) dataset: Dataset,
    /// Type of floating-point inputs and targets.
    pub(crate) dtype: DType,
    pub(crate) batches: MicroBatches,
    /// Buffer for pixel inputs; `None` for other inputs.
    pub(crate) pixels: Option<Rc<PixelBuffer>>,
    /// Sequence shards of this rank, if sequences are split over context lanes.
    pub(crate) pieces: Option<ContextPieces>,
    /// Work of passes on preference pairs; `None` for other data.
    pub(crate) pairs: Option<PairWork>,
    /// Number of modules that predict later tokens.
    pub(crate) modules: usize,
    /// Index of the stage that computes losses.
    pub(crate) last_stage: usize,
    /// Loss weight of each sequence shard, computed with the targets.
    pub(crate) shares: Option<Vec<f32>>,
}

impl BatchArrays {
    /// Returns the array shapes of a micro-batch.
    fn shape(&self, micro_batch: usize) -> Result<BatchShape> {
        Ok(self.dataset.source.shape_of(self.batches.id(micro_batch)?))
    }

    /// Copies an array of a micro-batch to the device.
    fn array(
        &self,
        micro_batch: usize,
        shape: &ArrayShape,
        array: fn(&MicroBatch) -> Option<&HostArray>,
    ) -> Result<Tensor> {
        self.copied(micro_batch, shape, move |batch| Ok(array(batch).map(Cow::Borrowed)))
    }

    /// Copies an array computed from a micro-batch to the device.
    fn computed_array(
        &self,
        micro_batch: usize,
        shape: &ArrayShape,
        array: impl Fn(&MicroBatch) -> Result<HostArray> + 'static,
    ) -> Result<Tensor> {
        self.copied(micro_batch, shape, move |batch| Ok(Some(Cow::Owned(array(batch)?))))
    }

    /// Copies the result of `array`, if any, to the device, in a replay that of the micro-batch replayed.
    fn copied(
        &self,
        micro_batch: usize,
        shape: &ArrayShape,
        array: impl Fn(&MicroBatch) -> Result<Option<Cow<'_, HostArray>>> + 'static,
    ) -> Result<Tensor> {
        let device = self.device.clone();
        let batches = self.batches.clone();
        let dtype = self.dtype;
        let tensor = allocate(&device, shape, dtype)?;
        let target = tensor.region().outlive();
        self.recorder.host(move || {
            batches.read(micro_batch, |batch| match array(batch)? {
                Some(array) => fill(&device, &array, dtype, target.region()),
                None => Ok(()),
            })
        })?;
        Ok(tensor)
    }

    /// Returns the inputs of a micro-batch on the device.
    pub(crate) fn inputs(&self, micro_batch: usize) -> Result<Tensor> {
        if let Some(pieces) = &self.pieces {
            return self.batches.read(micro_batch, |batch| pieces.upload(&self.device, &batch.inputs));
        }
        match &self.pixels {
            Some(pixels) => self.pixel_inputs(pixels, micro_batch),
            None => self.array(micro_batch, &self.shape(micro_batch)?.inputs, |batch| Some(&batch.inputs)),
        }
    }

    /// Returns pixel inputs on the device, normalised.
    fn pixel_inputs(&self, pixels: &Rc<PixelBuffer>, micro_batch: usize) -> Result<Tensor> {
        let buffer = Rc::clone(pixels);
        let batches = self.batches.clone();
        self.recorder.host(move || batches.read(micro_batch, |batch| buffer.fill(&batch.inputs)))?;
        let inputs = pixels.normalised(self.dtype)?;
        let buffer = Rc::clone(pixels);
        self.recorder.host(move || buffer.end_read())?;
        Ok(inputs)
    }

    /// Returns the targets of a micro-batch on the device.
    pub(crate) fn targets(&mut self, micro_batch: usize) -> Result<Tensor> {
        let Some(pieces) = &self.pieces else {
            let shape = self.shape(micro_batch)?.targets;
            return self.array(micro_batch, &shape, |batch| Some(&batch.targets));
        };
        let (shares, targets) = self.batches.read(micro_batch, |batch| {
            Ok((pieces.shares(&batch.targets)?, pieces.upload(&self.device, &batch.targets)?))
        })?;
        self.shares = Some(shares);
        Ok(targets)
    }

    /// Returns the pass settings of a micro-batch, with its arrays on the device.
    pub(crate) fn pass(&mut self, action: Action, token_count: Option<&Tensor>) -> Result<Pass> {
        let pass = match self.pieces.clone() {
            Some(pieces) => self.pass_of_pieces(&pieces, action.micro_batch)?,
            None => self.pass_of_whole(action.micro_batch)?,
        };
        let preference = self.preference(action)?;
        let tokens = token_count.map(|count| self.token_rows(action.micro_batch, count)).transpose()?;
        let later_tokens = self.later_tokens(action)?;
        Ok(Pass { preference, tokens, later_tokens, ..pass })
    }

    /// Returns the pass settings for whole sequences or samples.
    fn pass_of_whole(&self, micro_batch: usize) -> Result<Pass> {
        let source = &self.dataset.source;
        let copy =
            || self.array(micro_batch, &self.shape(micro_batch)?.inputs, |batch| batch.documents.as_ref());
        let documents = source.packs_documents().then(copy).transpose()?;
        Ok(Pass { documents, ..Pass::default() })
    }

    /// Returns the pass settings for sequence shards.
    fn pass_of_pieces(&mut self, pieces: &ContextPieces, micro_batch: usize) -> Result<Pass> {
        let shares = self.shares.take();
        let trains = self.batches.numbers()?.trains();
        let shape = self.shape(micro_batch)?.inputs;
        let masks = self.dataset.source.packs_documents();
        let pieces = match masks {
            true => self.batches.read(micro_batch, |batch| {
                pieces.of_pass(&self.device, &shape, (batch.documents.as_ref(), masks), shares, trains)
            })?,
            false => pieces.of_pass(&self.device, &shape, (None, masks), shares, trains)?,
        };
        Ok(Pass { pieces: Some(pieces), ..Pass::default() })
    }

    /// Returns the preference pairs for a pass through the stage of `action`; `None` unless it is the last
    /// stage.
    fn preference(&self, action: Action) -> Result<Option<PreferencePass>> {
        match self.pairs.as_ref().filter(|_| action.stage == self.last_stage) {
            Some(pairs) => self.batches.read(action.micro_batch, |batch| pairs.upload(&self.device, batch)),
            None => Ok(None),
        }
    }

    /// Returns the arrays of the modules that predict later tokens; empty unless the pass is a training pass
    /// through the last stage.
    fn later_tokens(&self, action: Action) -> Result<Vec<LaterTokens>> {
        if action.stage != self.last_stage || self.modules == 0 || !self.batches.numbers()?.trains() {
            return Ok(Vec::new());
        }
        let shape = self.shape(action.micro_batch)?;
        let of_module = |distance: usize| match &self.pieces {
            None => {
                let copy = |of: LaterArray, shape: &ArrayShape| {
                    let own = move |batch: &MicroBatch| of.values(batch, distance);
                    self.computed_array(action.micro_batch, shape, own)
                };
                Ok(LaterTokens {
                    inputs: copy(LaterArray::Inputs, &shape.inputs)?,
                    targets: copy(LaterArray::Targets, &shape.targets)?,
                    shares: Vec::new(),
                })
            }
            Some(pieces) => self.batches.read(action.micro_batch, |batch| {
                let targets = LaterArray::Targets.values(batch, distance)?;
                Ok(LaterTokens {
                    inputs: pieces.upload(&self.device, &LaterArray::Inputs.values(batch, distance)?)?,
                    targets: pieces.upload(&self.device, &targets)?,
                    shares: pieces.shares(&targets)?,
                })
            }),
        };
        (1..=self.modules).map(of_module).collect()
    }

    /// Returns which rows of a micro-batch are tokens. `count` is the number of tokens in the step.
    fn token_rows(&self, micro_batch: usize, count: &Tensor) -> Result<TokenRows> {
        let shape = self.shape(micro_batch)?.inputs;
        let mask = match &self.pieces {
            Some(pieces) => self.batches.read(micro_batch, |batch| {
                let marks = batch.tokens.clone().unwrap_or_else(|| shape.without_values());
                pieces.upload(&self.device, &marks)
            })?,
            None => self.array(micro_batch, &shape, |batch| batch.tokens.as_ref())?,
        };
        Ok(TokenRows { mask, count: count.clone() })
    }
}
