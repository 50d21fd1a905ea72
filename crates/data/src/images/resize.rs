//! Scaling of images with an antialiased bilinear filter, as Pillow's.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::picture::{Picture, Window};

/// Returns the window of an image, scaled to `width` × `height`; `None` if the window is not within the
/// image.
pub(super) fn scaled(from: &Picture, window: Window, width: usize, height: usize) -> Option<Picture> {
    let pixel = if from.channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
    let side = |value: usize| u32::try_from(value).ok();
    let source = ImageRef::new(side(from.width)?, side(from.height)?, &from.pixels, pixel).ok()?;
    let mut target = Image::new(side(width)?, side(height)?, pixel);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
        window.left as f64,
        window.top as f64,
        window.width as f64,
        window.height as f64,
    );
    Resizer::new().resize(&source, &mut target, Some(&options)).ok()?;
    Some(Picture { width, height, channels: from.channels, pixels: target.into_vec() })
}
