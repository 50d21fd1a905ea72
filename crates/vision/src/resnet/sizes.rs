//! The sizes of a residual network, and the resulting blocks.

use keys::{Interval, Row, choice, section};
use nn::MOST_EXTENT;

use crate::layers::ResidualBlockSizes;

section! {
    /// The sizes of a residual network.
    #[derive(Copy)]
    pub struct ResNetSizes = "model" {
        /// Number of layers with weights: 18, 34, 50, 101 or 152.
        depth: usize = Row::count(1, MOST_EXTENT).default("50");
        /// Multiplier of the numbers of channels, which are 64 to 512 in the blocks. The products are
        /// rounded down.
        width: f64 = Row::number(Interval::Positive).default("1.0");
        /// Number of classes of images.
        classes: usize = Row::count(1, MOST_EXTENT).default("1000");
        /// Height and width of the images.
        image_size: usize = Row::count(1, MOST_EXTENT).default("224");
        /// Layers before the first block. "imagenet" is for images of several hundred pixels a side, and has
        /// a convolution of 7 × 7 with stride 2 and max pooling, as in torchvision. "small" is for small
        /// images, and has a convolution of 3 × 3 with stride 1 and no pooling.
        stem: StemKind = choice!(StemKind, StemKind::ALL).default("\"imagenet\"");
        /// Number of values in a pixel.
        channels: usize = Row::count(1, MOST_EXTENT).default("3");
    }
}

system::names! {
    /// The layers before the first block.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StemKind {
        /// A convolution of 7 × 7 with stride 2, a norm with ReLU, and max pooling of 3 × 3 with stride 2.
        ImageNet = "imagenet",
        /// A convolution of 3 × 3 with stride 1, and a norm with ReLU.
        Small = "small",
    }
}

/// Depths, with the number of blocks in each of four stages, and whether the blocks are bottlenecks.
pub(super) const DEPTHS: [(usize, [usize; 4], bool); 5] = [
    (18, [2, 2, 2, 2], false),
    (34, [3, 4, 6, 3], false),
    (50, [3, 4, 6, 3], true),
    (101, [3, 4, 23, 3], true),
    (152, [3, 8, 36, 3], true),
];

/// Number of channels in the first stage; each stage doubles it.
const CHANNELS: usize = 64;

impl ResNetSizes {
    /// Returns the number of blocks in each stage, and whether they are bottlenecks; `None` for an unknown
    /// depth.
    pub(super) fn stages(&self) -> Option<([usize; 4], bool)> {
        let entry = DEPTHS.iter().find(|(depth, ..)| *depth == self.depth);
        entry.map(|(_, blocks, bottleneck)| (*blocks, *bottleneck))
    }

    /// Returns the number of channels of a stage's inner convolutions.
    pub(super) fn channels_of(&self, stage: usize) -> usize {
        (self.width * (CHANNELS << stage) as f64) as usize
    }

    /// Returns name and sizes of every block, in order.
    pub(super) fn blocks(&self) -> Vec<(String, ResidualBlockSizes)> {
        let Some((stages, bottleneck)) = self.stages() else { return Vec::new() };
        let mut blocks = Vec::new();
        let mut inputs = self.channels_of(0);
        for (stage, count) in stages.into_iter().enumerate() {
            for index in 0..count {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let sizes =
                    ResidualBlockSizes { inputs, channels: self.channels_of(stage), stride, bottleneck };
                inputs = sizes.outputs();
                blocks.push((format!("layer{}.{index}", stage + 1), sizes));
            }
        }
        blocks
    }
}
