//! Decodes JPEG and PNG files.

use std::io::Cursor;

use png::{ColorType, Transformations};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::picture::{MOST_SIDE, Picture};

/// First bytes of a PNG file.
const PNG: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
/// First bytes of a JPEG file.
const JPEG: [u8; 3] = [0xff, 0xd8, 0xff];

/// Decodes a file. Its first bytes, not its name, determine the format.
pub(super) fn decode(bytes: &[u8], channels: usize) -> Result<Picture, String> {
    if bytes.starts_with(&PNG) {
        decode_png(bytes).map(|picture| picture.with_channels(channels))
    } else if bytes.starts_with(&JPEG) {
        decode_jpeg(bytes, channels)
    } else {
        Err("it is neither JPEG nor PNG".to_owned())
    }
}

fn decode_jpeg(bytes: &[u8], channels: usize) -> Result<Picture, String> {
    let colours = if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    let options = DecoderOptions::default()
        .set_max_width(MOST_SIDE)
        .set_max_height(MOST_SIDE)
        .set_strict_mode(true)
        .jpeg_set_out_colorspace(colours);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    let info = decoder.info().ok_or("it has no size")?;
    whole(Picture { width: info.width.into(), height: info.height.into(), channels, pixels })
}

fn decode_png(bytes: &[u8]) -> Result<Picture, String> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
    let width = reader.info().width as usize;
    let height = reader.info().height as usize;
    if width > MOST_SIDE || height > MOST_SIDE {
        return Err(format!("it has {width} × {height} pixels, and a side has at most {MOST_SIDE}"));
    }
    let mut pixels = vec![0; reader.output_buffer_size().ok_or("it is too large")?];
    let frame = reader.next_frame(&mut pixels).map_err(|error| error.to_string())?;
    pixels.truncate(frame.buffer_size());
    // Transparency is left out, as Pillow's conversion to RGB does.
    let (channels, colours): (usize, usize) = match frame.color_type {
        ColorType::Grayscale => (1, 1),
        ColorType::GrayscaleAlpha => (2, 1),
        ColorType::Rgba => (4, 3),
        ColorType::Rgb | ColorType::Indexed => (3, 3),
    };
    if channels > colours {
        pixels = pixels.chunks_exact(channels).flat_map(|pixel| &pixel[..colours]).copied().collect();
    }
    whole(Picture { width, height, channels: colours, pixels })
}

/// Checks that the picture has a value for every pixel and channel.
fn whole(picture: Picture) -> Result<Picture, String> {
    let values = picture.width * picture.height * picture.channels;
    match values > 0 && picture.pixels.len() == values {
        true => Ok(picture),
        false => Err(format!("it has {} values instead of {values}", picture.pixels.len())),
    }
}
