//! Workspace of convolutions: cuDNN's on a GPU, the unfolded windows of some images on a host.

use device::{Category, ConvolutionShape, DType, Device, Request};

use crate::{Result, Tensor};

/// Maximum bytes of cuDNN's workspace, copies of operands not counted.
const MOST_BYTES: usize = 64 << 20;
/// Bytes of cuDNN's workspace for small arrays.
const LEAST_BYTES: usize = 1 << 20;
/// cuDNN's kernels for half types need channels in multiples of this.
const CHANNELS: usize = 8;
/// Bytes of unfolded windows, unless one image needs more.
const UNFOLDED_BYTES: usize = 16 << 20;

pub(super) fn allocate(
    device: &Device,
    operator: &'static str,
    shape: &ConvolutionShape,
    dtype: DType,
) -> Result<Tensor> {
    if device.is_cuda_like() {
        return Tensor::workspace(device, operator, library_bytes(shape, dtype));
    }
    let request = Request::new(Category::Workspace, operator);
    let elements = images_at_once(shape) * positions(shape) * shape.window();
    Tensor::empty(device, [elements], DType::F32, request)
}

/// Returns the bytes that cuDNN may use: twice the operands within limits, padded copies of both images if
/// their channels are no multiple of 8, and in f32 a copy of all operands in another layout.
fn library_bytes(shape: &ConvolutionShape, dtype: DType) -> usize {
    let [input, output, weight] = shape.elements();
    let operands = dtype.bytes() * (input + output + weight);
    let padded = |elements: usize, channels: usize| {
        let channels = channels / shape.groups;
        match channels.is_multiple_of(CHANNELS) {
            true => 0,
            false => dtype.bytes() * (elements / channels) * channels.next_multiple_of(CHANNELS),
        }
    };
    let relaid = if dtype == DType::F32 { operands } else { 0 };
    let copies = padded(input, shape.input[2]) + padded(output, shape.output[2]) + relaid;
    (2 * operands).clamp(LEAST_BYTES, MOST_BYTES) + copies
}

/// Returns the number of images whose windows (of one group) a host unfolds at once.
pub(super) fn images_at_once(shape: &ConvolutionShape) -> usize {
    let image = DType::F32.bytes() * positions(shape) * shape.window();
    (UNFOLDED_BYTES / image.max(1)).clamp(1, shape.batch)
}

fn positions(shape: &ConvolutionShape) -> usize {
    shape.output[0] * shape.output[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cuDNN's fast algorithms in f32 copy operands to another layout, in every pass.
    #[test]
    fn the_workspace_has_room_for_copies() {
        for (images, channels, dtype, expected) in [
            (117, 128, DType::F32, MOST_BYTES + 4 * (2 * 117 * 32 * 32 * 128 + 9 * 128 * 128)),
            (117, 128, DType::Bf16, MOST_BYTES),
            (1, 8, DType::F32, LEAST_BYTES + 4 * (2 * 32 * 32 * 8 + 9 * 8 * 8)),
            // Copies of both images with 8 channels.
            (1, 4, DType::Bf16, LEAST_BYTES + 2 * (2 * 32 * 32 * 8)),
        ] {
            let shape = ConvolutionShape {
                batch: images,
                input: [32, 32, channels],
                output: [32, 32, channels],
                kernel: [3; 2],
                stride: [1; 2],
                padding: [1; 2],
                dilation: [1; 2],
                groups: 1,
            };
            assert_eq!(library_bytes(&shape, dtype), expected, "{images} {channels} {dtype}");
        }
    }
}
