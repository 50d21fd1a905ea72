//! Creates the configuration of an image classifier.

use config::{Data, DataKind, Optim, Train};

use crate::draft::{Draft, JobOptions};
use crate::error::Result;
use crate::found_images::find_images;

/// Images with a shorter side below this many pixels get the layers for small images.
const SMALL: usize = 96;
/// Height and width of training samples from larger images, in pixels.
const USUAL: usize = 224;
/// Number of images per step for small images.
const SMALL_BATCH: usize = 128;
/// Number of images per step for larger images.
const LARGE_BATCH: usize = 256;
/// Learning rate for [`LARGE_BATCH`] images per step.
const RATE: f64 = 0.1;
const EPOCHS: f64 = 30.0;

/// Returns a configuration that trains a residual network to classify images.
///
/// # Errors
/// The folder has no images.
pub fn classify(options: &JobOptions) -> Result<Draft> {
    let found = find_images(options.directories.current(), &options.data)?;
    let mut draft = Draft::new("classify");
    draft.choose(format!("data: {}", found.summary));
    let side = found.side.unwrap_or(USUAL);
    let is_small = side < SMALL;
    set_model(&mut draft, found.classes, side, is_small);
    draft.set_data(DataKind::Images.name(), "images of classes", &options.data, options);
    draft.document.set(Data::validation_fraction, 0.05, "held out if no validation images are found");
    set_training(&mut draft, is_small, options);
    draft.set_precision(options);
    Ok(draft)
}

fn set_model(draft: &mut Draft, classes: usize, side: usize, is_small: bool) {
    let (depth, stem) = if is_small { (18_usize, "small") } else { (50, "imagenet") };
    let size = if is_small { side } else { USUAL };
    let document = &mut draft.document;
    document.set("model.kind", "resnet", "");
    document.set("model.depth", depth, "18, 34, 50, 101 or 152 layers");
    document.set("model.classes", classes, "as many as there are folders or labels");
    document.set("model.image_size", size, "height and width of samples");
    document.set("model.stem", stem, "\"small\" for images of some tens of pixels");
    draft.choose(format!("model: ResNet-{depth} with {classes} classes, samples of {size} × {size} pixels"));
}

fn set_training(draft: &mut Draft, is_small: bool, options: &JobOptions) {
    let usual = if is_small { SMALL_BATCH } else { LARGE_BATCH };
    let batch = if options.on_gpu() { usual } else { usual / 4 };
    let rate = RATE * batch as f64 / LARGE_BATCH as f64;
    let decay = if is_small { 5e-4 } else { 1e-4 };
    draft.document.set(Train::epochs, EPOCHS, "passes over the images, which decide the steps");
    draft.set_batch("images", batch, batch);
    let document = &mut draft.document;
    document.set(Train::label_smoothing, 0.1, "part of a target that is spread over all classes");
    document.set(Optim::kind, "sgd", "with momentum");
    document.set(Optim::learning_rate, rate, "highest rate; it falls along a cosine");
    document.set(Optim::min_learning_rate, 0.0, "rate at the end");
    document.set(Optim::warmup_steps, 100_u64, "steps in which the rate rises");
    document.set(Optim::weight_decay, decay, "");
    document.set(Optim::decay_norms, false, "norms and biases keep their weights");
    document.set(Optim::clip_norm, 0.0, "0: no clipping");
    draft.choose(format!("optim.learning_rate = {rate}: 0.1 for {LARGE_BATCH} images in a step"));
}
