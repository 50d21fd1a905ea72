//! FP8 codes of matrices cast in parts have the bits of matrices cast whole.

use device::{Category, Request};
use tensor::ops::fp8_linear::{self, Cast, Input, Recipe, Scaled};
use tensor::ops::fp8_parts::{self, CELLS, CODES};
use tensor::{DType, Tensor};

use crate::fp8_linear::{cases, check_cast, wide};
use crate::support::Case;

/// Rows and columns, multiples of 16: less than a tile, more, and several tiles.
const SIZES: [[usize; 2]; 5] = [[16, 16], [48, 64], [144, 272], [1040, 128], [64, 3088]];

/// Ends of the parts of a matrix, in percent of its elements; two parts are empty.
const ENDS: [usize; 5] = [0, 10, 10, 70, 100];

fn zeros<const N: usize>(case: &Case, shape: [usize; N], dtype: DType) -> Tensor {
    Tensor::zeros(&case.device, shape, dtype, Request::new(Category::Parameter, "test")).unwrap()
}

/// Returns the codes of `x` as stored, measured and cast part by part.
fn cast_in_parts(case: &Case, x: &Tensor) -> Scaled {
    let ends = ENDS.map(|percent| x.elements() * percent / 100 / 128 * 128);
    let mut parts: Vec<_> = std::iter::zip([0].iter().chain(&ends), &ends).collect();
    parts.retain(|(first, end)| first < end);
    let maxima = zeros(case, [ENDS.len(), 1], DType::U32);
    for (number, (first, end)) in parts.iter().enumerate() {
        let cells = zeros(case, [1, CELLS], DType::U32);
        let part = x.view(**first, [**end - **first]).unwrap();
        fp8_parts::measure(&part, &cells.reshape([CELLS]).unwrap()).unwrap();
        fp8_parts::fold(&cells, &maxima.view(number, [1]).unwrap()).unwrap();
    }
    let scales = zeros(case, [1, 4], DType::F32);
    fp8_parts::factors(&maxima, &scales).unwrap();
    let scales = scales.view(0, [1]).unwrap();
    let values = zeros(case, [x.shape().rows(), x.shape().columns()], CODES);
    for (first, end) in parts {
        let range = (*first, [*end - *first]);
        let part = x.view(range.0, range.1).unwrap();
        let codes = values.view(range.0, range.1).unwrap();
        fp8_parts::cast(&part, &scales, &codes).unwrap();
    }
    Scaled { values, scales }
}

#[test]
fn parts_have_the_codes_of_the_whole() {
    for case in cases() {
        for [rows, columns] in SIZES {
            let what = format!("{rows}x{columns} {}", case.name());
            let (x, _) = case.operand("x", [rows, columns]);
            let stored = cast_in_parts(&case, &x);
            let turned = zeros(&case, [columns, rows], CODES);
            fp8_parts::transpose(&stored.values, &turned).unwrap();
            let transposed = Scaled { values: turned, scales: stored.scales.clone() };
            let output = fp8_linear::Quantised { stored: Some(stored), transposed: Some(transposed) };
            check_cast::<device::E4m3>(&what, &wide(&case, &x), columns, Recipe::Tensorwise, &output);
            let cast = Cast::new(CODES, Recipe::Tensorwise).stored().transposed();
            let whole = fp8_linear::quantise(&x, Input::Plain, cast).unwrap();
            for (part, whole) in output.layouts().zip(whole.layouts()) {
                let factors = [part, whole].map(|scaled| scaled.scales.to_vec::<f32>().unwrap());
                assert_eq!(factors[0], factors[1], "{what}");
            }
        }
    }
}

#[test]
fn zeros_have_the_factor_one() {
    for case in cases() {
        let x = zeros(&case, [16, 16], case.dtype);
        let stored = cast_in_parts(&case, &x);
        assert_eq!(stored.scales.to_vec::<f32>().unwrap(), [1.0]);
    }
}
