//! The first micro-batch on a device, with its pass settings.

use autograd::Pass;
use config::RunConfig;
use data::{MicroBatch, Source};
use device::{DType, Device};
use tensor::Tensor;

use crate::build;
use crate::error::Result;
use crate::feed::arrays::upload;
use crate::feed::pairs::PairWork;
use crate::feed::pieces::ContextPieces;
use crate::feed::pixels::PixelBuffer;

/// Inputs and targets of a micro-batch on a device.
#[derive(Debug)]
pub struct Uploaded {
    /// Inputs of the model.
    pub inputs: Tensor,
    /// Targets.
    pub targets: Tensor,
    /// Settings of the micro-batch's passes.
    pub pass: Pass,
}

/// Reads the first micro-batch of `source` and copies it to the device.
///
/// # Errors
/// Data cannot be read, or the device fails.
pub fn first(config: &RunConfig, source: &dyn Source, device: &Device) -> Result<Uploaded> {
    let mut batch = MicroBatch::default();
    source.train(0, &mut batch)?;
    let pieces = ContextPieces::from_config(config, &config.parallel.grid().seen_from(0)?);
    let uploaded = match pieces {
        Some(pieces) => in_pieces(source, device, &pieces, &batch)?,
        None => whole(config, source, device, &batch)?,
    };
    Ok(Uploaded { pass: Pass { autocast: build::autocast(config), ..uploaded.pass }, ..uploaded })
}

/// Copies a micro-batch of whole sequences or samples to the device.
fn whole(config: &RunConfig, source: &dyn Source, device: &Device, batch: &MicroBatch) -> Result<Uploaded> {
    let dtype = config.precision.weight_dtype();
    let pixels = PixelBuffer::new(device, source)?;
    let inputs = match &pixels {
        Some(pixels) => pixels.upload(&batch.inputs, dtype)?,
        None => upload(device, &batch.inputs, dtype)?,
    };
    let targets = upload(device, &batch.targets, dtype)?;
    let pairs = PairWork::from_config(config, None);
    let preference = pairs.map(|pairs| pairs.upload(device, batch)).transpose()?.flatten();
    let documents = batch.documents.as_ref().map(|documents| upload(device, documents, DType::F32));
    let pass = Pass { preference, documents: documents.transpose()?, ..Pass::default() };
    Ok(Uploaded { inputs, targets, pass })
}

/// Copies this rank's sequence shards of a micro-batch to the device.
fn in_pieces(
    source: &dyn Source,
    device: &Device,
    pieces: &ContextPieces,
    batch: &MicroBatch,
) -> Result<Uploaded> {
    let shape = source.shape();
    let masks = source.packs_documents();
    let inputs = pieces.upload(device, &batch.inputs)?;
    let targets = pieces.upload(device, &batch.targets)?;
    let shares = Some(pieces.shares(&batch.targets)?);
    let pieces = pieces.of_pass(device, &shape.inputs, (batch.documents.as_ref(), masks), shares, true)?;
    Ok(Uploaded { inputs, targets, pass: Pass { pieces: Some(pieces), ..Pass::default() } })
}
