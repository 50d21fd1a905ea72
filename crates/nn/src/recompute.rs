//! The choice of layers that keep no activations.

use std::ops::Range;

/// Which layers of a model, or of a stage of one, compute their activations again in backward instead of
/// keeping them, in which segments. Each segment keeps its input and the one that runs again all of its
/// activations: a stack of n layers needs least with about √n segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recompute {
    layers: usize,
    segments: usize,
}

/// Consecutive layers that are run in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Layers, in the stack's own numbers.
    pub layers: Range<usize>,
    /// Whether they are a segment that runs again; otherwise they keep what they compute.
    pub again: bool,
}

impl Recompute {
    /// All layers keep their activations.
    pub const NONE: Recompute = Recompute { layers: 0, segments: 0 };

    /// Every layer is a segment of its own.
    pub const EACH: Recompute = Recompute { layers: usize::MAX, segments: usize::MAX };

    /// The first `layers` of a stack, or all where it has fewer, in `segments` segments as long as each other
    /// or one layer longer, the longer ones first; where there are fewer layers than that, each on its own.
    /// No layers or no segments: [`Recompute::NONE`].
    #[must_use]
    pub fn first(layers: usize, segments: usize) -> Self {
        Recompute { layers, segments }
    }

    /// A stack of `layers` layers, divided.
    #[must_use]
    pub fn parts(self, layers: usize) -> Vec<Part> {
        let again = if self.segments == 0 { 0 } else { self.layers.min(layers) };
        let segments = self.segments.min(again);
        let mut parts = Vec::with_capacity(segments + 1);
        let mut start = 0;
        for segment in 0..segments {
            let length = again / segments + usize::from(segment < again % segments);
            parts.push(Part { layers: start..start + length, again: true });
            start += length;
        }
        if start < layers {
            parts.push(Part { layers: start..layers, again: false });
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_divided() {
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
