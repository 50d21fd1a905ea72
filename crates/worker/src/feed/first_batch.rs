//! The first micro-batch on a device, and the settings of passes of micro-batches.

use autograd::Pass;
use config::RunConfig;
use data::MicroBatch;
use device::{DType, Device};
use tensor::Tensor;

use crate::build;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::feed::arrays::{allocate, upload};
use crate::feed::pairs::PairWork;
use crate::feed::pieces::ContextPieces;
use crate::feed::pixels::PixelBuffer;

/// A micro-batch on a device.
#[derive(Debug)]
pub struct Uploaded {
    /// Inputs of the model.
    pub inputs: Tensor,
    /// Targets.
    pub targets: Tensor,
    /// Settings shared by the micro-batch's passes.
    pub pass: Pass,
}

/// Returns the first micro-batch; on Meta, of its shape.
///
/// # Errors
/// Data that cannot be read; the device's.
pub fn first(config: &RunConfig, dataset: &Dataset, device: &Device) -> Result<Uploaded> {
    let dtype = config.precision.weight_dtype();
    let pairs = PairWork::of(config, None);
    let with_casts = |pass| Pass { autocast: build::autocast(config), ..pass };
    let pieces = ContextPieces::of(config, &config.parallel.grid().seen_from(0)?);
    if let Some(pieces) = pieces {
        let uploaded = first_pieces(dataset, device, &pieces)?;
        return Ok(Uploaded { pass: with_casts(uploaded.pass), ..uploaded });
    }
    let mut pixels = PixelBuffer::new(device, dataset)?;
    if device.is_meta() {
        let shape = dataset.source.shape();
        let inputs = match &mut pixels {
            Some(pixels) => {
                let values = pixels.normalised(dtype)?;
                pixels.end_read()?;
                values
            }
            None => allocate(device, &shape.inputs, dtype)?,
        };
        let targets = allocate(device, &shape.targets, dtype)?;
        let preference = pairs.map(|pairs| pairs.allocate(device, sequences(dataset))).transpose()?;
        let pass = Pass { preference, ..pass_of(device, dataset, 0)? };
        return Ok(Uploaded { inputs, targets, pass: with_casts(pass) });
    }
    let mut batch = MicroBatch::default();
    dataset.source.train(0, &mut batch)?;
    let inputs = match &mut pixels {
        Some(pixels) => pixels.upload(&batch.inputs, dtype)?,
        None => upload(device, &batch.inputs, dtype)?,
    };
    let targets = upload(device, &batch.targets, dtype)?;
    let preference = pairs.map(|pairs| pairs.upload(device, &batch)).transpose()?.flatten();
    let pass = Pass { preference, ..pass(device, &batch, 0)? };
    Ok(Uploaded { inputs, targets, pass: with_casts(pass) })
}

/// Sequences or samples of a micro-batch.
pub(crate) fn sequences(dataset: &Dataset) -> usize {
    dataset.source.shape().inputs.extents.first().copied().unwrap_or_default()
}

/// [`first`] of sequences in pieces.
fn first_pieces(dataset: &Dataset, device: &Device, pieces: &ContextPieces) -> Result<Uploaded> {
    let (shape, masks) = (dataset.source.shape(), dataset.source.packs_documents());
    let of_pass = |documents, shares| -> Result<Pass> {
        let pieces = pieces.of_pass(device, &shape.inputs, (documents, masks), shares, true)?;
        Ok(Pass { pieces: Some(pieces), ..Pass::default() })
    };
    if device.is_meta() {
        let inputs = pieces.allocate(device, &shape.inputs)?;
        let targets = pieces.allocate(device, &shape.targets)?;
        return Ok(Uploaded { inputs, targets, pass: of_pass(None, None)? });
    }
    let mut batch = MicroBatch::default();
    dataset.source.train(0, &mut batch)?;
    let inputs = pieces.upload(device, &batch.inputs)?;
    let targets = pieces.upload(device, &batch.targets)?;
    let pass = of_pass(batch.documents.as_ref(), Some(pieces.shares(&batch.targets)?))?;
    Ok(Uploaded { inputs, targets, pass })
}

/// Returns the settings shared by the passes of micro-batch `number`.
pub(crate) fn pass(device: &Device, batch: &MicroBatch, number: u64) -> Result<Pass> {
    let documents = batch.documents.as_ref().map(|documents| upload(device, documents, DType::F32));
    Ok(Pass { micro_batch: number, documents: documents.transpose()?, ..Pass::default() })
}

/// [`pass`] on Meta, with an array of the same shape.
pub(crate) fn pass_of(device: &Device, dataset: &Dataset, number: u64) -> Result<Pass> {
    let packs = dataset.source.packs_documents();
    let documents = packs.then(|| allocate(device, &dataset.source.shape().inputs, DType::F32));
    Ok(Pass { micro_batch: number, documents: documents.transpose()?, ..Pass::default() })
}
