//! Crops images. Random crops depend on the sample's number.

use philox::{philox4x32, uniform};

use super::options::{Crop, ImageOptions};
use super::picture::{Picture, Window};
use super::resize::scaled;

/// Number of random rectangles tried before the largest central one is used.
const ATTEMPTS: u32 = 10;
/// Minimum and maximum area of a random rectangle, as a fraction of the image.
const AREA: [f64; 2] = [0.08, 1.0];
/// Minimum and maximum ratio of width to height of a random rectangle.
const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];
/// Fraction of an image's shorter side used in validation.
const CENTER: f64 = 224.0 / 256.0;

/// Random numbers for one sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    pub(super) key: [u32; 2],
    /// Number of the sample over all epochs.
    pub(super) sample: u64,
}

impl Draws {
    /// Returns block `block` of four random words.
    pub(super) fn words(&self, block: u32) -> [u32; 4] {
        philox4x32(self.key, [block, 0, self.sample as u32, (self.sample >> 32) as u32])
    }

    /// Maps a random word to a number below `count`.
    fn below(word: u32, count: usize) -> usize {
        // The high word of the product scales 32 random bits to the count.
        ((u64::from(word) * count as u64) >> 32) as usize
    }
}

/// Crops and flips a training image; `None` if it cannot be scaled.
pub(super) fn training(image: Picture, options: &ImageOptions, draws: Draws) -> Option<Picture> {
    let size = options.size;
    let crop = match options.crop {
        Crop::Auto if image.is_square(size) => Crop::Padded,
        Crop::Auto => Crop::Resized,
        crop => crop,
    };
    let [flip, left, top, _] = draws.words(0);
    let mut sample = match crop {
        Crop::Center => centered(image, size)?,
        Crop::Resized => scaled(&image, rectangle(&image, draws), size, size)?,
        Crop::Padded | Crop::Auto => {
            let padding = options.crop_padding;
            let offset = |word| Draws::below(word, 2 * padding + 1);
            centered(image, size)?.padded_window(size, padding, offset(left), offset(top))
        }
    };
    if options.flip && flip >> 31 == 1 {
        sample.mirror();
    }
    Some(sample)
}

/// Returns the central square of an image. An image of exactly `size` is returned unchanged; otherwise its
/// shorter side is first scaled to 256/224 of `size`. `None` if it cannot be scaled.
pub(super) fn centered(image: Picture, size: usize) -> Option<Picture> {
    if image.is_square(size) {
        return Some(image);
    }
    let side = ((image.width.min(image.height) as f64 * CENTER).round() as usize).max(1);
    let left = (image.width - side) / 2;
    let top = (image.height - side) / 2;
    scaled(&image, Window { left, top, width: side, height: side }, size, size)
}

/// Draws a rectangle as torchvision's `RandomResizedCrop` does.
fn rectangle(image: &Picture, draws: Draws) -> Window {
    let width = image.width;
    let height = image.height;
    let between = |[least, most]: [f64; 2], word| least + (most - least) * f64::from(uniform(word));
    for attempt in 1..=ATTEMPTS {
        let [area, ratio, left, top] = draws.words(attempt);
        let area = (width * height) as f64 * between(AREA, area);
        let ratio = libm::exp(between(RATIO.map(libm::log), ratio));
        let w = (area * ratio).sqrt().round() as usize;
        let h = (area / ratio).sqrt().round() as usize;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let left = Draws::below(left, width - w + 1);
            let top = Draws::below(top, height - h + 1);
            return Window { left, top, width: w, height: h };
        }
    }
    let ratio = (width as f64 / height as f64).clamp(RATIO[0], RATIO[1]);
    let w = width.min((height as f64 * ratio).round() as usize).max(1);
    let h = height.min((width as f64 / ratio).round() as usize).max(1);
    Window { left: (width - w) / 2, top: (height - h) / 2, width: w, height: h }
}
