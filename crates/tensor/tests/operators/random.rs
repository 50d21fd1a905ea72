use std::slice;

use tensor::ops::random;

use crate::support::{bits, cpu, devices, read, tensor};

#[test]
fn an_element_is_a_function_of_seed_name_and_its_index() {
    let device = cpu();
    let make = |length: usize, seed: u64, name: &str| {
        let x = tensor(&device, &vec![f32::NAN; length], [length]);
        random::normal(&x, seed, name, 0.0, 1.0).unwrap();
        bits(&x)
    };
    let long = make(40_003, 1, "blocks.0.weight");
    for length in [1, 2, 5, 4096, 4099, 20_000] {
        assert_eq!(make(length, 1, "blocks.0.weight"), long[..length], "{length}");
    }
    assert_ne!(make(40_003, 2, "blocks.0.weight"), long);
    assert_ne!(make(40_003, 1, "blocks.1.weight"), long);
    let key = philox::key_of_name(1, "blocks.0.weight");
    for block in [0usize, 1, 1023, 1024, 4095, 4096, 9999] {
        let expected = philox::normals(philox::philox4x32(key, [block as u32, 0, 0, 0]));
        assert_eq!(long[4 * block..4 * block + 4], expected.map(f32::to_bits), "block {block}");
    }
}

#[test]
fn a_part_has_the_same_values_as_the_whole() {
    let device = cpu();
    let whole = tensor(&device, &vec![f32::NAN; 60_000], [60_000]);
    for first in [0, 1, 3, 4, 4095, 4096, 20_001] {
        let part = tensor(&device, &vec![f32::NAN; 30_011], [30_011]);
        let of_whole = || whole.view(first, [30_011]).unwrap();
        random::normal(&whole, 1, "w", 0.5, 2.0).unwrap();
        random::normal_part(&part, slice::from_ref(&(first..first + 30_011)), 1, "w", 0.5, 2.0).unwrap();
        assert_eq!(bits(&part), bits(&of_whole()), "{first}");
        random::uniform(&whole, 1, "w", -0.5, 2.0).unwrap();
        random::uniform_part(&part, slice::from_ref(&(first..first + 30_011)), 1, "w", -0.5, 2.0).unwrap();
        assert_eq!(bits(&part), bits(&of_whole()), "{first}");
    }
}

/// A part has one third of a matrix's columns, then a separate range, then a range of another length.
#[test]
fn a_part_may_have_several_ranges_of_the_whole() {
    let (rows, columns) = (401, 33);
    let host = cpu();
    let whole = tensor(&host, &vec![f32::NAN; rows * columns], [rows, columns]);
    random::normal(&whole, 1, "w", 0.5, 2.0).unwrap();
    let whole = whole.to_vec::<f32>().unwrap();
    for case in devices() {
        for part in 0..3 {
            let column = |row: usize| row * columns + part * 11;
            let mut ranges: Vec<_> = (0..rows).map(|row| column(row)..column(row) + 11).collect();
            ranges.extend([5..16, 17..20]);
            let elements = ranges.iter().map(std::ops::Range::len).sum::<usize>();
            let own = case.tensor(&vec![f32::NAN; elements], [elements]);
            random::normal_part(&own, &ranges, 1, "w", 0.5, 2.0).unwrap();
            let expected = ranges.into_iter().flat_map(|range| whole[range].to_vec());
            let rounded: Vec<f32> = expected.map(|value| case.round(value)).collect();
            assert_eq!(read(&own), crate::support::wide(&rounded), "{}, part {part}", case.name());
        }
    }
    let short = tensor(&host, &[f32::NAN; 5], [5]);
    assert!(random::normal_part(&short, &[0..2, 7..9], 1, "w", 0.5, 2.0).is_err());
}

#[test]
fn every_device_and_type_has_the_same_rounded_values() {
    let host = cpu();
    let length = 40_003;
    let expected = |make: &dyn Fn(&tensor::Tensor)| {
        let x = tensor(&host, &vec![f32::NAN; length], [length]);
        make(&x);
        x.to_vec::<f32>().unwrap()
    };
    for case in devices() {
        let normal = |x: &tensor::Tensor| random::normal(x, 5, "blocks.1.weight", 0.1, 0.02).unwrap();
        let uniform = |x: &tensor::Tensor| random::uniform(x, 5, "blocks.1.weight", -0.5, 0.25).unwrap();
        for make in [&normal as &dyn Fn(&tensor::Tensor), &uniform] {
            let x = case.tensor(&vec![f32::NAN; length], [length]);
            make(&x);
            let rounded: Vec<f32> = expected(make).iter().map(|v| case.round(*v)).collect();
            assert_eq!(read(&x), crate::support::wide(&rounded), "{}", case.name());
        }
    }
}

#[test]
fn moments_have_the_requested_values() {
    let device = cpu();
    let count = 200_000;
    let x = tensor(&device, &vec![f32::NAN; count], [count]);
    let moments = |x: &tensor::Tensor| {
        let values = read(x);
        let mean = values.iter().sum::<f64>() / count as f64;
        (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count as f64, values)
    };
    random::normal(&x, 3, "x", 0.5, 0.02).unwrap();
    let (mean, variance, _) = moments(&x);
    assert!((mean - 0.5).abs() < 5.0 * 0.02 / (count as f64).sqrt(), "{mean}");
    assert!((variance.sqrt() / 0.02 - 1.0).abs() < 0.01, "{variance}");
    random::uniform(&x, 3, "x", -2.0, 6.0).unwrap();
    let (mean, variance, values) = moments(&x);
    assert!((mean - 2.0).abs() < 0.03, "{mean}");
    assert!((variance - 64.0 / 12.0).abs() < 0.05, "{variance}");
    assert!(values.iter().all(|v| (-2.0..=6.0).contains(v)));
}
