use device::{Category, Request};
use tensor::ops::{DTYPES, cast};
use tensor::{DType, Tensor};

use crate::support::{LENGTHS, bits, devices, normal, read, tensor, typed};
use crate::trial::Trial;

#[test]
fn casts_round_to_nearest_and_back_are_exact() {
    let mut devices: Vec<_> = devices().into_iter().map(|case| case.device).collect();
    devices.dedup_by_key(|device| device.backend());
    let halves = || DTYPES.iter().copied().filter(|dtype| *dtype != DType::F32);
    for (device, half) in
        devices.into_iter().flat_map(|device| halves().map(move |half| (device.clone(), half)))
    {
        for length in LENGTHS {
            // For bf16: ties above and below, both signs, a subnormal, overflow to infinity, the largest,
            // zero.
            let special = [
                f32::from_bits(0x3f80_8000),
                f32::from_bits(0x3f81_8000),
                f32::from_bits(0xbf80_8001),
                f32::from_bits(0x0000_ffff),
                f32::MAX,
                f32::from_bits(0x7f7f_0000),
                -0.0,
                f32::NEG_INFINITY,
            ];
            let mut values = normal("cast", length);
            values.iter_mut().rev().zip(special).for_each(|(value, special)| *value = special);
            let source = tensor(&device, &values, [length]);
            let empty = |dtype| {
                Tensor::empty(&device, [length], dtype, Request::new(Category::Other, "test")).unwrap()
            };
            let narrow = empty(half);
            let back = empty(DType::F32);
            cast::into(&source, &narrow).unwrap();
            assert_eq!(bits(&narrow), bits(&typed(&device, half, &values, [length])));
            cast::into(&narrow, &back).unwrap();
            assert_eq!(read(&back), read(&narrow));
        }
        let nan = tensor(&device, &[f32::NAN], [1]);
        let narrow = typed(&device, half, &[0.0], [1]);
        cast::into(&nan, &narrow).unwrap();
        assert!(read(&narrow)[0].is_nan());
    }
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for length in LENGTHS {
        let (x, wide) = trial.operand("x", [length]);
        // Between f32 and half types.
        let single = trial.dtype == DType::F32;
        for dtype in DTYPES.iter().copied().filter(|dtype| (*dtype == DType::F32) != single) {
            trial.label(format!("{length} to {dtype}"));
            let cast = Tensor::empty(&trial.device, [length], dtype, Request::new(Category::Other, "test"));
            let cast = cast.unwrap();
            cast::into(&x, &cast).unwrap();
            match dtype {
                DType::F32 => trial.rounded_output("cast to f32", &cast, || wide.clone()),
                _ => trial.result("cast", &cast),
            }
        }
    }
}
