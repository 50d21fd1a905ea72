use tensor::Tensor;
use tensor::ops::norm;

use crate::support::{bits, cpu, operand, read, tensor};

#[test]
fn norm_and_factor_of_several_tensors() {
    let device = cpu();
    let lengths = [1, 4095, 4096, 4097, 100_000];
    let total: usize = lengths.iter().map(|length| norm::chunks(*length)).sum();
    let sums = tensor(&device, &vec![f32::NAN; total], [total]);
    let (mut first, mut squares) = (0, 0.0);
    for length in lengths {
        let (x, wide) = operand(&device, "x", [length]);
        squares += wide.iter().map(|v| v * v).sum::<f64>();
        norm::chunk_sums(&x, &sums.view(first, [norm::chunks(length)]).unwrap()).unwrap();
        first += norm::chunks(length);
    }
    let length = squares.sqrt();
    for (max_norm, factor) in
        [(0.0, 1.0), (1.0, 1.0 / (length + 1e-6)), (1e9, 1.0), (length as f32 / 2.0, 0.5)]
    {
        let out = tensor(&device, &[f32::NAN; 2], [2]);
        norm::finish(&sums, max_norm, &out).unwrap();
        let found = read(&out);
        assert!((found[0] / length - 1.0).abs() < 1e-6, "{found:?}");
        assert!((found[1] / factor - 1.0).abs() < 1e-6, "{found:?} for {max_norm}");
    }
}

#[test]
fn a_part_that_begins_on_a_chunk_has_the_sums_of_the_whole() {
    let device = cpu();
    let (x, _) = operand(&device, "x", [50_000]);
    let sums = |x: &Tensor| {
        let count = norm::chunks(x.elements());
        let sums = tensor(&device, &vec![f32::NAN; count], [count]);
        norm::chunk_sums(x, &sums).unwrap();
        bits(&sums)
    };
    let cut = 5 * norm::CHUNK;
    let parts = [sums(&x.view(0, [cut]).unwrap()), sums(&x.view(cut, [50_000 - cut]).unwrap())];
    assert_eq!(sums(&x), parts.concat());
}

#[test]
fn values_that_are_no_numbers_show() {
    let device = cpu();
    let out = tensor(&device, &[0.0f32; 2], [2]);
    norm::finish(&tensor(&device, &[1.0f32, f32::NAN], [2]), 1.0, &out).unwrap();
    assert!(read(&out).iter().all(|v| v.is_nan()));
    norm::finish(&tensor(&device, &[f32::INFINITY], [1]), 1.0, &out).unwrap();
    assert_eq!(read(&out), [f64::INFINITY, 0.0]);
}
