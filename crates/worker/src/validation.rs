//! The results of validation micro-batches, gathered from the ranks that computed them.

use collective::{Axis, Planes};
use parallel::data::Assignment;
use tensor::ops::accuracy::COUNTS;

use crate::error::Result;

/// The results of a rank's validation micro-batches, in order, if it has the model's last stage.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Mean loss of each.
    pub losses: Vec<f32>,
    /// Of images, the counts of each: images, and those whose class was the best, or among the best five.
    pub counts: Option<Vec<[u32; COUNTS]>>,
}

/// The result of a validation, equal on every rank and every grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Mean loss.
    pub loss: f64,
    /// The share of images whose class was found; `None` for other examples.
    pub accuracy: Option<Accuracy>,
}

/// Images whose class was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accuracy {
    /// Images.
    pub images: u64,
    /// Images whose class had the highest score.
    pub first: u64,
    /// Images whose class had one of the five highest scores.
    pub among: u64,
}

impl Accuracy {
    /// The share of images whose class had the highest score, from 0 to 1.
    #[must_use]
    pub fn top_1(&self) -> f64 {
        self.first as f64 / self.images.max(1) as f64
    }

    /// The share of images whose class had one of the five highest scores, from 0 to 1.
    #[must_use]
    pub fn top_5(&self) -> f64 {
        self.among as f64 / self.images.max(1) as f64
    }
}

impl Validation {
    /// Joins the results of all micro-batches, in order. Those of images weigh by their images.
    #[must_use]
    pub fn of(all: &Losses) -> Self {
        let losses = all.losses.iter().map(|loss| f64::from(*loss));
        let Some(counts) = &all.counts else {
            return Self { loss: losses.sum::<f64>() / all.losses.len().max(1) as f64, accuracy: None };
        };
        let sum = |at: usize| counts.iter().map(|counts| u64::from(counts[at])).sum();
        let accuracy = Accuracy { images: sum(0), first: sum(1), among: sum(2) };
        let weighed = losses.zip(counts).map(|(loss, counts)| loss * f64::from(counts[0]));
        Self { loss: weighed.sum::<f64>() / accuracy.images.max(1) as f64, accuracy: Some(accuracy) }
    }
}

/// Returns the results of all validation micro-batches of an assignment in order, on every rank. `own` are
/// the results of this rank's micro-batches.
pub(crate) fn of_all(planes: &mut Planes, own: &Losses, assignment: &Assignment) -> Result<Losses> {
    let bits: Vec<[u32; 1]> = own.losses.iter().map(|loss| [loss.to_bits()]).collect();
    let losses =
        gathered(planes, &bits, assignment)?.into_iter().map(|[bits]| f32::from_bits(bits)).collect();
    let counts = own.counts.as_ref().map(|own| gathered(planes, own, assignment)).transpose()?;
    Ok(Losses { losses, counts })
}

/// Returns the words of all validation micro-batches in order.
fn gathered<const N: usize>(
    planes: &mut Planes,
    own: &[[u32; N]],
    assignment: &Assignment,
) -> Result<Vec<[u32; N]>> {
    let bytes: Vec<u8> = own.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = planes.control().all_gather(&bytes)?;
    let grid = *planes.grid();
    let last = (Axis::Pipeline, grid.size(Axis::Pipeline) - 1);
    let of = |number: usize| -> Option<[u32; N]> {
        let (replica, index) = assignment.owner(number);
        let bytes = all.get(grid.rank_at(&[(Axis::Data, replica), last]))?;
        let (words, _) = bytes.get(4 * N * index..4 * N * (index + 1))?.as_chunks::<4>();
        let mut of_one = [0; N];
        of_one.iter_mut().zip(words).for_each(|(to, word)| *to = u32::from_le_bytes(*word));
        Some(of_one)
    };
    Ok((0..assignment.total()).filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_weigh_alike_whatever_their_micro_batch() {
        let counts = Some(vec![[2, 1, 2], [1, 1, 1], [0, 0, 0]]);
        let all = Losses { losses: vec![1.0, 4.0, 0.0], counts };
        let Validation { loss, accuracy } = Validation::of(&all);
        assert_eq!((loss, accuracy), (2.0, Some(Accuracy { images: 3, first: 2, among: 3 })));
        assert_eq!(accuracy.map(|accuracy| (accuracy.top_1(), accuracy.top_5())), Some((2.0 / 3.0, 1.0)));
        let plain = Losses { losses: vec![1.0, 4.0], counts: None };
        assert_eq!(Validation::of(&plain), Validation { loss: 2.5, accuracy: None });
    }
}
