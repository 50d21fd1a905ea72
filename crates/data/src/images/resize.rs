//! Scales images with an antialiased bilinear filter, as Pillow does.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use super::picture::{Picture, Window};

/// Number of channels of the only pixel type that is scaled, because the library's code per type is large.
const CHANNELS: usize = 3;

/// Returns a window of an image scaled to `width` × `height`; `None` if the window exceeds the image.
pub(super) fn scaled(from: &Picture, window: Window, width: usize, height: usize) -> Option<Picture> {
    if from.channels == CHANNELS {
        let pixels = in_color(from, &from.pixels, window, (width, height))?;
        return Some(Picture { width, height, channels: CHANNELS, pixels });
    }
    let gray: Vec<_> = from.pixels.iter().flat_map(|value| [*value; CHANNELS]).collect();
    let pixels = in_color(from, &gray, window, (width, height))?.into_iter().step_by(CHANNELS).collect();
    Some(Picture { width, height, channels: 1, pixels })
}

fn in_color(from: &Picture, pixels: &[u8], window: Window, size: (usize, usize)) -> Option<Vec<u8>> {
    let side = |value: usize| u32::try_from(value).ok();
    let width = side(from.width)?;
    let height = side(from.height)?;
    let source = TypedImageRef::<U8x3>::from_buffer(width, height, pixels).ok()?;
    let mut scaled = vec![0; size.0 * size.1 * CHANNELS];
    let mut target = TypedImage::<U8x3>::from_buffer(side(size.0)?, side(size.1)?, &mut scaled).ok()?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
        window.left as f64,
        window.top as f64,
        window.width as f64,
        window.height as f64,
    );
    Resizer::new().resize_typed(&source, &mut target, Some(&options)).ok()?;
    Some(scaled)
}
