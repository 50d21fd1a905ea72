//! The sharding of a parameter over the grid: which elements each part holds.
//!
//! Along each axis of the grid, a parameter is replicated, or one of its dimensions is divided into equal
//! parts. In a fused matrix, each group of rows (query, key and value; gate and up) is divided separately, so
//! that every part has rows of all groups. The sharding determines initial values, the ranks that sum the
//! gradient, the order of the norm, and the slices in checkpoints and in folders of other formats.

use std::ops::Range;

use collective::Axis;
use tensor::Shape;

use crate::error::{NnError, Result};

/// A dimension divided into equal parts along an axis of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// The axis along which ranks hold different parts.
    pub axis: Axis,
    /// Index of the divided dimension.
    pub dimension: usize,
    /// Number of parts.
    pub parts: usize,
    /// Sizes of the groups that are divided separately; they add up to the dimension.
    pub groups: Vec<usize>,
}

/// Consecutive elements of a part that are also consecutive in the whole parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementRun {
    /// Index of the first element in the part.
    pub local: usize,
    /// Index of the first element in the whole parameter.
    pub whole: usize,
    /// Number of elements.
    pub elements: usize,
}

/// The sharding of one parameter.
///
/// ```
/// use collective::Axis;
/// use nn::{Sharding, ElementRun};
/// // Two groups of four rows, of which each of two parts has half.
/// let fused = Sharding::replicated([8, 3]).divided_in_groups(Axis::Data, 0, 2, &[4, 4])?;
/// assert_eq!(fused.shape().dims(), [4, 3]);
/// let second = fused.runs(|_| 1, 0..12);
/// let run = |local, whole| ElementRun { local, whole, elements: 6 };
/// assert_eq!(second, [run(0, 6), run(6, 18)]);
/// # Ok::<(), nn::NnError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    whole: Shape,
    divisions: Vec<Division>,
}

impl Sharding {
    /// Creates the sharding of a parameter that every rank holds whole.
    pub fn replicated(whole: impl Into<Shape>) -> Self {
        Sharding { whole: whole.into(), divisions: Vec::new() }
    }

    /// Divides a dimension into `parts` parts along `axis`.
    ///
    /// # Errors
    /// The dimension does not exist, is already divided, or is not a multiple of `parts`, or `axis` already
    /// divides another dimension.
    pub fn divided(self, axis: Axis, dimension: usize, parts: usize) -> Result<Self> {
        let size = self.whole.dims().get(dimension).copied().unwrap_or(0);
        self.divided_in_groups(axis, dimension, parts, &[size])
    }

    /// Divides each of the `groups` of a dimension into `parts` parts along `axis`.
    ///
    /// # Errors
    /// Errors of [`Sharding::divided`], or the groups do not add up to the dimension.
    pub fn divided_in_groups(
        mut self,
        axis: Axis,
        dimension: usize,
        parts: usize,
        groups: &[usize],
    ) -> Result<Self> {
        let refused = |reason: &str| {
            let whole = self.whole;
            let axis = axis.name();
            Err(NnError::Sharding(format!(
                "dimension {dimension} of {whole} cannot be divided in {parts} along {axis}: {reason}"
            )))
        };
        let Some(size) = self.whole.dims().get(dimension) else {
            return refused("there is no such dimension");
        };
        if self.divisions.iter().any(|other| other.axis == axis || other.dimension == dimension) {
            return refused("the axis or the dimension has a division");
        }
        if groups.iter().sum::<usize>() != *size {
            return refused("its groups have another number of elements");
        }
        if parts == 0 || !groups.iter().all(|group| group.is_multiple_of(parts)) {
            return refused("its parts would differ in size");
        }
        if parts > 1 {
            self.divisions.push(Division { axis, dimension, parts, groups: groups.to_vec() });
            self.divisions.sort_by_key(|division| division.dimension);
        }
        Ok(self)
    }

    /// Shape of the whole parameter.
    pub fn whole(&self) -> Shape {
        self.whole
    }

    /// Shape of one part.
    pub fn shape(&self) -> Shape {
        let divide = |shape: Shape, Division { dimension, parts, .. }: &Division| {
            shape.with(*dimension, self.whole.dims()[*dimension] / parts).unwrap_or(shape)
        };
        self.divisions.iter().fold(self.whole, divide)
    }

    /// The divided dimensions, in order.
    pub fn divisions(&self) -> &[Division] {
        &self.divisions
    }

    /// Number of different parts.
    pub fn parts(&self) -> usize {
        self.divisions.iter().map(|division| division.parts).product()
    }

    /// Returns the index of the part at a position on the grid. `coordinate` returns the position along an
    /// axis.
    pub fn part(&self, coordinate: impl Fn(Axis) -> usize) -> usize {
        self.divisions.iter().fold(0, |part, division| part * division.parts + coordinate(division.axis))
    }

    /// Returns whether ranks along `axis` hold different parts.
    pub fn is_divided_along(&self, axis: Axis) -> bool {
        self.divisions.iter().any(|division| division.axis == axis)
    }

    /// Axes over which the parameter's gradient is summed: along them, ranks compute different examples with
    /// the same elements.
    pub fn reduction_axes(&self) -> impl Iterator<Item = Axis> {
        Axis::ALL.into_iter().filter(|axis| axis.divides_examples() && !self.is_divided_along(*axis))
    }

    /// Returns the location in the whole parameter of elements `range` of a part, in the part's order.
    /// `coordinate` returns the part's index along an axis.
    pub fn runs(&self, coordinate: impl Fn(Axis) -> usize, range: Range<usize>) -> Vec<ElementRun> {
        let mut runs = vec![ElementRun { local: 0, whole: 0, elements: 1 }];
        for (dimension, size) in self.whole.dims().iter().enumerate() {
            let division = self.divisions.iter().find(|division| division.dimension == dimension);
            let segments = match division {
                None => vec![ElementRun { local: 0, whole: 0, elements: *size }],
                Some(division) => division.segments(coordinate(division.axis)),
            };
            let local_size = segments.iter().map(|segment| segment.elements).sum();
            runs = refined(&runs, &segments, (local_size, *size));
        }
        runs.into_iter().filter_map(|run| run.within(&range)).collect()
    }
}

impl Division {
    /// Returns the indices along the dimension that part `part` holds.
    fn segments(&self, part: usize) -> Vec<ElementRun> {
        let mut segments = Vec::new();
        let mut local = 0;
        let mut whole = 0;
        for group in &self.groups {
            let elements = group / self.parts;
            segments.push(ElementRun { local, whole: whole + part * elements, elements });
            local += elements;
            whole += group;
        }
        segments
    }
}

impl ElementRun {
    /// Returns the portion of the run whose indices in the part are in `range`, if any.
    pub fn within(self, range: &Range<usize>) -> Option<Self> {
        let start = self.local.max(range.start);
        let end = (self.local + self.elements).min(range.end);
        let run =
            || ElementRun { local: start, whole: self.whole + start - self.local, elements: end - start };
        (start < end).then(run)
    }
}

/// Adds an innermost dimension to the runs `outer` of an array. The dimension has `local_size` elements in
/// the part and `size` in the whole; the part holds `segments` of it.
fn refined(
    outer: &[ElementRun],
    segments: &[ElementRun],
    (local_size, size): (usize, usize),
) -> Vec<ElementRun> {
    if local_size == size {
        let widen = |run: &ElementRun| ElementRun {
            local: run.local * size,
            whole: run.whole * size,
            elements: run.elements * size,
        };
        return outer.iter().map(widen).collect();
    }
    let rows =
        outer.iter().flat_map(|run| (0..run.elements).map(move |row| (run.local + row, run.whole + row)));
    let refine = |(local, whole): (usize, usize)| {
        segments.iter().map(move |segment| ElementRun {
            local: local * local_size + segment.local,
            whole: whole * size + segment.whole,
            elements: segment.elements,
        })
    };
    rows.flat_map(refine).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the index in the whole of every element that a part holds, in the part's order.
    fn elements(sharding: &Sharding, data: usize, pipeline: usize) -> Vec<usize> {
        let coordinate = |axis| if axis == Axis::Data { data } else { pipeline };
        let runs = sharding.runs(coordinate, 0..sharding.shape().elements());
        let mut local = 0;
        for run in &runs {
            assert_eq!(run.local, local, "runs follow each other in the part");
            local += run.elements;
        }
        assert_eq!(local, sharding.shape().elements());
        runs.into_iter().flat_map(|run| run.whole..run.whole + run.elements).collect()
    }

    #[test]
    fn columns_of_a_matrix_are_a_run_for_each_row() {
        let columns = Sharding::replicated([2, 6]).divided(Axis::Data, 1, 3).unwrap();
        assert_eq!(elements(&columns, 1, 0), [2, 3, 8, 9]);
        assert_eq!(columns.runs(|_| 1, 1..3).iter().map(|run| run.whole).collect::<Vec<_>>(), [3, 8]);
        assert_eq!(columns.reduction_axes().count(), 0);
    }

    #[test]
    fn rows_are_one_run_and_a_replicated_parameter_is_one() {
        let rows = Sharding::replicated([6, 5]).divided(Axis::Data, 0, 3).unwrap();
        assert_eq!(rows.runs(|_| 2, 0..10), [ElementRun { local: 0, whole: 20, elements: 10 }]);
        let whole = Sharding::replicated([6, 5]);
        assert_eq!(whole.runs(|_| 2, 7..30), [ElementRun { local: 7, whole: 7, elements: 23 }]);
        assert_eq!((whole.parts(), whole.part(|_| 2)), (1, 0));
        assert_eq!(whole.reduction_axes().collect::<Vec<_>>(), [Axis::Data]);
    }

    #[test]
    fn divisions_that_do_not_fit_are_refused() {
        let matrix = || Sharding::replicated([6, 5]);
        for (refused, reason) in [
            (matrix().divided(Axis::Data, 2, 2), "no such dimension"),
            (matrix().divided(Axis::Data, 1, 2), "differ in size"),
            (matrix().divided(Axis::Data, 0, 0), "differ in size"),
            (matrix().divided_in_groups(Axis::Data, 0, 2, &[4, 4]), "another number of elements"),
            (matrix().divided_in_groups(Axis::Data, 0, 2, &[3, 3]), "differ in size"),
            (
                matrix().divided(Axis::Data, 0, 2).and_then(|once| once.divided(Axis::Data, 1, 5)),
                "has a division",
            ),
        ] {
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(reason), "{message}");
        }
    }

    proptest! {
        #[test]
        fn parts_hold_each_element_once(
            (rows, row_parts) in (1_usize..4, 1_usize..4),
            groups in prop::collection::vec(1_usize..4, 1..4),
            (columns, column_parts) in (1_usize..3, 1_usize..4),
            swapped in any::<bool>(),
        ) {
            let groups: Vec<usize> = groups.into_iter().map(|group| group * row_parts).collect();
            let height = groups.iter().sum::<usize>();
            let width = columns * column_parts;
            let axes = if swapped { [Axis::Pipeline, Axis::Data] } else { [Axis::Data, Axis::Pipeline] };
            let sharding = Sharding::replicated([height, rows, width])
                .divided_in_groups(axes[0], 0, row_parts, &groups)
                .and_then(|sharding| sharding.divided(axes[1], 2, column_parts))
                .unwrap();
            let sizes = if swapped { [column_parts, row_parts] } else { [row_parts, column_parts] };
            let mut all = Vec::new();
            let mut numbers = Vec::new();
            for data in 0..sizes[0] {
                for pipeline in 0..sizes[1] {
                    all.extend(elements(&sharding, data, pipeline));
                    numbers.push(sharding.part(|axis| if axis == Axis::Data { data } else { pipeline }));
                }
            }
            all.sort_unstable();
            numbers.sort_unstable();
            prop_assert_eq!(all, (0..height * rows * width).collect::<Vec<_>>());
            prop_assert_eq!(numbers, (0..sharding.parts()).collect::<Vec<_>>());
        }
    }
}
