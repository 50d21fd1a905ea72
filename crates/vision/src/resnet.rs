//! Residual networks for image classification, as in torchvision (version 1.5: a bottleneck's stride is at
//! its 3 × 3 convolution).

mod folder;
mod model;
mod reader;
mod sizes;

pub use model::ResNet;
pub(crate) use reader::CONFIG;
pub use sizes::{ResNetSizes, StemKind};

use keys::RawValues;
use nn::models::check_bytes;
use nn::{
    Conditions, Examples, Family, HuggingFaceModel, MOST_EXTENT, Model, ModelSpec, Parameters, Recompute,
    Result, Searchable, Stage,
};

use sizes::DEPTHS;

/// The family `resnet`.
pub const RESNET: Family = Family::new::<ResNetSizes>("resnet").with_hugging_face(folder::CONFIG);

impl ModelSpec for ResNetSizes {
    fn layers(&self) -> usize {
        self.stages().map_or(1, |(blocks, _)| blocks.iter().sum())
    }

    fn layers_key(&self) -> &'static str {
        Self::depth
    }

    fn examples(&self) -> Examples {
        let Self { classes, image_size, channels, .. } = *self;
        Examples::Images { channels, size: image_size, classes }
    }

    fn convolves(&self) -> bool {
        true
    }

    fn check(&self, raw: &RawValues, conditions: &Conditions) -> keys::Result<()> {
        let Self { depth, width, classes, image_size, channels, .. } = *self;
        if self.stages().is_none() {
            let depths = DEPTHS.map(|(depth, ..)| depth.to_string()).join(", ");
            let reason = format!("model.depth = {depth} is not one of {depths}");
            return Err(raw.conflict(&[Self::depth], reason));
        }
        let most = MOST_EXTENT as f64 / 2048.0;
        if self.channels_of(0) == 0 || width > most {
            let reason = format!("model.width = {width} leaves no channel or more than can be counted");
            return Err(raw.conflict(&[Self::width], reason));
        }
        let of_batch = ("train.micro_batch_size", conditions.micro_batch_size);
        let of_image = [(Self::image_size, image_size), (Self::image_size, image_size), of_batch];
        let wide = self.channels_of(0).max(channels);
        check_bytes(
            raw,
            &[
                ("the output's weight", 4 * self.channels_of(3), &[(Self::classes, classes)]),
                ("a micro-batch's activations", 16 * wide, &of_image),
            ],
        )
    }

    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>> {
        Ok(Box::new(ResNet::new(parameters, self, stage)?.recomputing(recompute)))
    }

    fn hugging_face(&self) -> Option<HuggingFaceModel> {
        folder::model(self)
    }

    fn summary(&self) -> String {
        let Self { depth, width, classes, image_size, stem, .. } = self;
        let stem = if *stem == StemKind::Small { ", small stem" } else { "" };
        let width = if *width == 1.0 { String::new() } else { format!(", width {width}") };
        format!("ResNet-{depth}{width}{stem}, {classes} classes, {image_size} × {image_size}")
    }

    fn searchable(&self) -> Vec<Searchable> {
        let alone = |_: usize, _: usize| Vec::new();
        vec![Searchable { key: Self::image_size, value: self.image_size, step: 32, follows: alone }]
    }
}
