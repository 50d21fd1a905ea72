//! Pooling on the host, one task per row of the result's pixels.

use device::parallel::for_pieces;

use super::windows::WindowShape;
use crate::{Result, Tensor};

/// A pixel of the result: image, row and column.
type Pixel = [usize; 3];

/// Calls `body(pixel, out)` with the channels of each pixel of `out`, which holds images of `size`.
fn for_pixels(out: &mut [f32], size: [usize; 2], channels: usize, body: impl Fn(Pixel, &mut [f32]) + Sync) {
    for_pieces(out, size[1] * channels, |index, row| {
        for (column, out) in row.chunks_mut(channels).enumerate() {
            body([index / size[0], index % size[0], column], out);
        }
    });
}

fn pixel(x: &[f32], [image, row, column]: Pixel, size: [usize; 2], channels: usize) -> &[f32] {
    &x[((image * size[0] + row) * size[1] + column) * channels..][..channels]
}

pub(super) fn maximum(shape: &WindowShape, x: &Tensor, y: &Tensor) -> Result<()> {
    let x = x.values()?;
    let x: &[f32] = &x;
    for_pixels(&mut y.values_mut()?, shape.output, shape.channels, |[image, row, column], out| {
        out.fill(f32::NEG_INFINITY);
        for row in shape.elements(0, row) {
            for column in shape.elements(1, column) {
                let values = pixel(x, [image, row, column], shape.input, shape.channels);
                for (best, value) in out.iter_mut().zip(values) {
                    *best = if *value > *best || value.is_nan() { *value } else { *best };
                }
            }
        }
    });
    Ok(())
}

pub(super) fn maximum_backward(
    shape: &WindowShape,
    dy: &Tensor,
    x: &Tensor,
    y: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let channels = shape.channels;
    let dy = dy.values()?;
    let x = x.values()?;
    let y = y.values()?;
    let (dy, x, y): (&[f32], &[f32], &[f32]) = (&dy, &x, &y);
    for_pixels(&mut dx.values_mut()?, shape.input, channels, |position, out| {
        let [image, row, column] = position;
        let own = pixel(x, position, shape.input, channels);
        for (channel, (out, own)) in out.iter_mut().zip(own).enumerate() {
            let mut sum = 0.0;
            for top in shape.readers(0, row) {
                for left in shape.readers(1, column) {
                    let window = [image, top, left];
                    let largest = pixel(y, window, shape.output, channels)[channel];
                    let is_largest = |at: [usize; 2]| {
                        let value = pixel(x, [image, at[0], at[1]], shape.input, channels)[channel];
                        same(value, largest)
                    };
                    let earlier = || {
                        let columns = shape.elements(1, left);
                        let above = (shape.elements(0, top).start..row)
                            .flat_map(|row| columns.clone().map(move |column| [row, column]));
                        let beside = (columns.start..column).map(|column| [row, column]);
                        above.chain(beside).any(is_largest)
                    };
                    if same(*own, largest) && !earlier() {
                        sum += pixel(dy, window, shape.output, channels)[channel];
                    }
                }
            }
            *out = sum;
        }
    });
    Ok(())
}

fn same(a: f32, b: f32) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

/// Returns the factor of a window's sum: 1 / its divisor.
fn scale(shape: &WindowShape, [row, column]: [usize; 2]) -> f32 {
    let elements = match shape.divisor() {
        0 => shape.elements(0, row).len() * shape.elements(1, column).len(),
        divisor => divisor,
    };
    1.0 / elements.max(1) as f32
}

/// Number of channels that are summed at once.
const CHANNELS: usize = 64;

pub(super) fn average(shape: &WindowShape, x: &Tensor, y: &Tensor) -> Result<()> {
    let x = x.values()?;
    let x: &[f32] = &x;
    for_pixels(&mut y.values_mut()?, shape.output, shape.channels, |[image, row, column], out| {
        let scale = scale(shape, [row, column]);
        for (piece, out) in out.chunks_mut(CHANNELS).enumerate() {
            let mut sums = [0.0f32; CHANNELS];
            for row in shape.elements(0, row) {
                for column in shape.elements(1, column) {
                    let values = pixel(x, [image, row, column], shape.input, shape.channels);
                    let values = &values[piece * CHANNELS..][..out.len()];
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                }
            }
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * scale);
        }
    });
    Ok(())
}

pub(super) fn average_backward(shape: &WindowShape, dy: &Tensor, dx: &Tensor) -> Result<()> {
    let dy = dy.values()?;
    let dy: &[f32] = &dy;
    for_pixels(&mut dx.values_mut()?, shape.input, shape.channels, |[image, row, column], out| {
        for (piece, out) in out.chunks_mut(CHANNELS).enumerate() {
            let mut sums = [0.0f32; CHANNELS];
            for top in shape.readers(0, row) {
                for left in shape.readers(1, column) {
                    let scale = scale(shape, [top, left]);
                    let values = pixel(dy, [image, top, left], shape.output, shape.channels);
                    let values = &values[piece * CHANNELS..][..out.len()];
                    let terms = sums.iter_mut().zip(values);
                    terms.for_each(|(sum, value)| *sum = value.mul_add(scale, *sum));
                }
            }
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum);
        }
    });
    Ok(())
}
