//! Who keeps which part of what belongs to the parameters: gradients' sums, moments, masters.

use std::ops::Range;

use nn::Parameters;
use tensor::Tensor;

use super::buckets::{BucketLayout, Place};
use crate::error::Result;

/// A part of a parameter: elements that follow each other, from a multiple of the norm's chunk on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The parameter's number.
    pub parameter: usize,
    /// Which of its elements.
    pub elements: Range<usize>,
}

impl Piece {
    /// This part of a tensor as long as the parameter: a view, and the tensor itself where that is all of it.
    pub fn of(&self, whole: &Tensor) -> Result<Tensor> {
        if self.elements.len() == whole.elements() {
            return Ok(whole.clone());
        }
        Ok(whole.view(self.elements.start, [self.elements.len()])?)
    }
}

/// The pieces of all ranks, which together are every parameter once.
///
/// Divided, rank r has what lies in the r-th of the equal parts of every bucket, so a parameter is in at most
/// one piece of a rank. Undivided, every rank has every parameter whole. This is about what the optimizer
/// keeps: the weights that a model computes with are whole everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// By rank; one entry where nothing is divided.
    pieces: Vec<Vec<Piece>>,
    own: usize,
}

impl Shards {
    /// Every parameter whole, on every rank.
    pub fn undivided(parameters: &Parameters) -> Self {
        let sizes = parameters.list().iter().map(|parameter| parameter.tensor.elements());
        let whole = |(parameter, elements)| Piece { parameter, elements: 0..elements };
        Shards { pieces: vec![sizes.enumerate().map(whole).collect()], own: 0 }
    }

    /// The division over `ranks`, of which this is `rank`, that follows from where gradients lie.
    pub fn divided(parameters: &Parameters, layout: &BucketLayout, ranks: usize, rank: usize) -> Self {
        let sizes = parameters.list().iter().map(|parameter| parameter.tensor.elements());
        let placed: Vec<_> = layout.first_uses(parameters).into_iter().zip(sizes).collect();
        let of = |rank| pieces_of(&placed, &layout.elements, ranks, rank);
        Shards { pieces: (0..ranks).map(of).collect(), own: rank }
    }

    /// Whether ranks keep different parts.
    pub fn is_divided(&self) -> bool {
        self.pieces.len() > 1
    }

    /// What this rank keeps, in the order of the parameters.
    pub fn own(&self) -> &[Piece] {
        &self.pieces[self.own]
    }

    /// What each rank keeps; one entry where nothing is divided.
    pub fn by_rank(&self) -> &[Vec<Piece>] {
        &self.pieces
    }

    /// The part of a parameter that `rank` keeps; where nothing is divided, there is rank 0 only. Empty if it
    /// keeps none.
    pub fn part(&self, rank: usize, parameter: usize) -> Range<usize> {
        let pieces = self.pieces.get(rank).map_or(&[][..], Vec::as_slice);
        let found = pieces.binary_search_by_key(&parameter, |piece| piece.parameter);
        found.map_or(0..0, |index| pieces[index].elements.clone())
    }
}

/// The overlap of each placed parameter (its place and elements) with rank `rank`'s part of its bucket.
fn pieces_of(placed: &[(Option<Place>, usize)], buckets: &[usize], ranks: usize, rank: usize) -> Vec<Piece> {
    let overlap = |(parameter, (place, elements)): (usize, &(Option<Place>, usize))| {
        let place = (*place)?;
        let part = buckets[place.bucket] / ranks;
        let inside = |end: usize| end.saturating_sub(place.offset).min(*elements);
        let elements = inside(rank * part)..inside((rank + 1) * part);
        (!elements.is_empty()).then_some(Piece { parameter, elements })
    };
    placed.iter().enumerate().filter_map(overlap).collect()
}

#[cfg(test)]
mod tests {
    use device::{DType, Description, Device, DeviceOptions};
    use nn::{Init, Parameters};
    use proptest::prelude::*;
    use tensor::ops::norm::CHUNK;

    use super::{BucketLayout, Piece, Shards};

    /// Parameters of these sizes, some of which have a second use.
    fn parameters(sizes: &[usize], reused: &[usize]) -> Parameters {
        let device = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap();
        let mut parameters = Parameters::new(&device, 1, DType::F32);
        for (index, size) in sizes.iter().enumerate() {
            parameters.create(&format!("p{index}"), [*size], Init::Constant(0.0)).unwrap();
        }
        for index in reused {
            parameters.reuse(&format!("p{}", index % sizes.len())).unwrap();
        }
        parameters
    }

    proptest! {
        #[test]
        fn pieces_of_all_ranks_are_every_element_once(
            sizes in prop::collection::vec(1_usize..40_000, 1..30),
            reused in prop::collection::vec(0_usize..30, 0..3),
            bucket_bytes in 4_usize..400_000,
            ranks in prop::sample::select(vec![1_usize, 2, 4, 8]),
        ) {
            let parameters = parameters(&sizes, &reused);
            let layout = BucketLayout::of(&parameters, DType::F32, bucket_bytes, ranks);
            let shards = Shards::divided(&parameters, &layout, ranks, ranks - 1);
            prop_assert_eq!(shards.by_rank().len(), ranks);
            prop_assert_eq!(shards.own(), &*shards.by_rank()[ranks - 1]);
            prop_assert_eq!(shards.is_divided(), ranks > 1);
            for (parameter, size) in sizes.iter().enumerate() {
                // One after another, each rank's part begins where the one before ended.
                let mut end = 0;
                for rank in 0..ranks {
                    let part = shards.part(rank, parameter);
                    let listed = shards.by_rank()[rank].contains(&Piece { parameter, elements: part.clone() });
                    prop_assert_eq!(listed, !part.is_empty());
                    if !part.is_empty() {
                        prop_assert_eq!(part.start, end);
                        prop_assert_eq!(part.start % CHUNK, 0);
                        end = part.end;
                    }
                }
                prop_assert_eq!(end, *size);
            }
            // What a rank keeps of a parameter, it has of the gradients of all its uses.
            for used in parameters.uses() {
                let place = layout.places[used.id.0 as usize];
                for rank in 0..ranks {
                    let part = shards.part(rank, used.parameter.0);
                    if !part.is_empty() {
                        let own = layout.elements[place.bucket] / ranks;
                        let (start, end) = (place.offset + part.start, place.offset + part.end);
                        prop_assert!(rank * own <= start && end <= (rank + 1) * own);
                    }
                }
            }
            // In order, and no rank has more than its part of the buckets of first uses.
            for pieces in shards.by_rank() {
                prop_assert!(pieces.windows(2).all(|pair| pair[0].parameter < pair[1].parameter));
                let kept: usize = pieces.iter().map(|piece| piece.elements.len()).sum();
                prop_assert!(kept * ranks <= layout.elements.iter().sum());
            }
            let undivided = Shards::undivided(&parameters);
            prop_assert!(!undivided.is_divided());
            if ranks == 1 {
                prop_assert_eq!(&shards, &undivided);
            }
        }
    }
}
