//! The selection of layers that discard their activations and recompute them.

use std::ops::Range;

/// The layers of a model or stage that recompute their activations in backward, divided into segments. Each
/// segment keeps its input, and while it is recomputed all of its activations. A stack of n layers needs the
/// least memory with about √n segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recompute {
    layers: usize,
    segments: usize,
}

/// Consecutive layers that either all recompute or all keep activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// Indices of the layers within the stack.
    pub layers: Range<usize>,
    /// Whether the layers are a recomputed segment; if false, they keep their activations.
    pub again: bool,
}

impl Recompute {
    /// All layers keep their activations.
    pub const NONE: Recompute = Recompute { layers: 0, segments: 0 };

    /// Every layer is a segment of its own.
    pub const EACH: Recompute = Recompute { layers: usize::MAX, segments: usize::MAX };

    /// Recomputes the first `layers` of a stack, or all if it has fewer, in `segments` segments. Segments
    /// differ in length by at most one layer, longer ones first; there are no more segments than layers. If
    /// either number is 0, this is [`Recompute::NONE`].
    #[must_use]
    pub fn first(layers: usize, segments: usize) -> Self {
        Recompute { layers, segments }
    }

    /// Divides a stack of `layers` layers into segments and layers that keep their activations.
    #[must_use]
    pub fn parts(self, layers: usize) -> Vec<LayerGroup> {
        let again = if self.segments == 0 { 0 } else { self.layers.min(layers) };
        let segments = self.segments.min(again);
        let mut parts = Vec::with_capacity(segments + 1);
        let mut start = 0;
        for segment in 0..segments {
            let length = again / segments + usize::from(segment < again % segments);
            parts.push(LayerGroup { layers: start..start + length, again: true });
            start += length;
        }
        if start < layers {
            parts.push(LayerGroup { layers: start..layers, again: false });
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_divided_into_segments() {
        let table: [(Recompute, usize, &[usize], usize); 10] = [
            (Recompute::NONE, 3, &[], 3),
            (Recompute::first(0, 4), 3, &[], 3),
            (Recompute::first(4, 0), 3, &[], 3),
            (Recompute::EACH, 3, &[1, 1, 1], 0),
            (Recompute::EACH, 0, &[], 0),
            (Recompute::first(usize::MAX, 4), 16, &[4, 4, 4, 4], 0),
            (Recompute::first(usize::MAX, 4), 14, &[4, 4, 3, 3], 0),
            (Recompute::first(usize::MAX, 4), 3, &[1, 1, 1], 0),
            (Recompute::first(7, 2), 12, &[4, 3], 5),
            (Recompute::first(7, usize::MAX), 5, &[1, 1, 1, 1, 1], 0),
        ];
        for (recompute, layers, segments, rest) in table {
            let parts = recompute.parts(layers);
            let lengths = |again: bool| -> Vec<usize> {
                parts.iter().filter(|part| part.again == again).map(|part| part.layers.len()).collect()
            };
            assert_eq!(lengths(true), segments, "{recompute:?} of {layers}");
            assert_eq!(lengths(false).iter().sum::<usize>(), rest, "{recompute:?} of {layers}");
            let all: Vec<usize> = parts.iter().flat_map(|part| part.layers.clone()).collect();
            assert_eq!(all, (0..layers).collect::<Vec<_>>());
        }
    }
}
