//! Normalisation of pixels, compared with f64.

use device::{Category, Request};
use tensor::ops::pixels::{MOST_CHANNELS, normalise};
use tensor::{DType, Tensor};

use crate::support::{bits, devices, read};

const MEAN: [f64; MOST_CHANNELS] = [0.485, 0.456, 0.406, 0.0];
const DEVIATION: [f64; MOST_CHANNELS] = [0.229, 0.224, 0.225, 1.0];

#[test]
fn levels_are_normalised_in_f64_and_rounded_by_channel() {
    for case in devices() {
        // Lengths that are and are not multiples of vectors, pixels and blocks; views that are not aligned.
        for (channels, length, offset) in
            [(1, 256, 0), (3, 3 * 32 * 32, 0), (3, 99_999, 0), (3, 70_003, 1), (4, 4 * 333, 3), (2, 1, 0)]
        {
            let levels: Vec<u8> = (0..length + offset).map(|at| (at * 37 + at / 256) as u8).collect();
            let request = Request::new(Category::Input, "test");
            let whole = Tensor::empty(&case.device, [length + offset], DType::U8, request).unwrap();
            whole.set(&levels).unwrap();
            let pixels = whole.view(offset, [length]).unwrap();
            let mean = &MEAN[..channels];
            let deviation = &DEVIATION[..channels];
            let actual = normalise(&pixels, mean, deviation, case.dtype).unwrap();
            let expected_value = |(at, level): (usize, &u8)| {
                let mean = mean[at % channels];
                let deviation = deviation[at % channels];
                case.round(((f64::from(*level) / 255.0 - mean) / deviation) as f32)
            };
            let expected: Vec<f32> = levels[offset..].iter().enumerate().map(expected_value).collect();
            let expected = case.tensor(&expected, [length]);
            assert_eq!(bits(&actual), bits(&expected), "{} {channels} {length} {offset}", case.name());
            assert!(read(&actual).iter().all(|value| value.is_finite()));
        }
        let words = case.tensor(&[0.0], [1]);
        assert!(normalise(&words, &MEAN, &DEVIATION, case.dtype).is_err());
        let pixels = Tensor::from_host(&case.device, &[0_u8; 5], [5], Category::Input).unwrap();
        assert!(normalise(&pixels, &MEAN[..2], &DEVIATION[..3], case.dtype).is_err());
        assert!(normalise(&pixels, &[0.0; 5], &[1.0; 5], case.dtype).is_err());
        assert!(normalise(&pixels, &[], &[], case.dtype).is_err());
    }
}
