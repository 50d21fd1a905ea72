use device::Category;
use tensor::ops::noise::{Noise, add};

use crate::support::{LENGTHS, devices, read};
use crate::trial::Trial;

const SEED: u64 = 3;

/// The noise of `count` elements, by definition.
fn noise(site: &str, micro_batch: u64, magnitude: f64, count: usize) -> Vec<f64> {
    let key = philox::key_of_name(SEED, site);
    let [a, b, ..] = philox::philox4x32(key, [micro_batch as u32, (micro_batch >> 32) as u32, 0, 0]);
    let word = |i: usize| philox::philox4x32([a, b], [(i / 4) as u32, ((i / 4) >> 32) as u32, 0, 0])[i % 4];
    (0..count).map(|i| magnitude * (f64::from(word(i) >> 8) / 8_388_608.0 - 1.0)).collect()
}

/// Noise follows from random words, and is uniform in its range.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (length, magnitude) in LENGTHS.into_iter().flat_map(|n| [(n, 0.01), (n, 3.0)]) {
        trial.label(format!("{length} {magnitude}"));
        let noise_here = Noise::new(SEED, "site", 1 << 33, magnitude);
        let (x, x_wide) = trial.operand("x", [length]);
        let apart = add(x.clone(), noise_here, Category::Activation).unwrap();
        trial.rounded_output("operand in use", &x, || x_wide.clone());
        trial.output("output", &apart, || {
            let noise = noise("site", 1 << 33, f64::from(magnitude), length);
            if length > 10_000 {
                check_moments(&noise, f64::from(magnitude));
            }
            x_wide.iter().zip(&noise).map(|(x, noise)| x + noise).collect()
        });
        let address = x.region().buffer.address();
        let overwritten = add(x, noise_here, Category::Activation).unwrap();
        assert_eq!(overwritten.region().buffer.address(), address, "{}", trial.what("overwritten operand"));
        trial.same("overwritten output", &overwritten, &apart);
    }
}

/// Checks range, mean and variance within five standard errors.
fn check_moments(noise: &[f64], magnitude: f64) {
    let mean =
        |power: i32| noise.iter().map(|x| (x / magnitude).powi(power)).sum::<f64>() / noise.len() as f64;
    let errors = 5.0 / (noise.len() as f64).sqrt();
    assert!(mean(1).abs() < errors * (1.0_f64 / 3.0).sqrt(), "{}", mean(1));
    assert!((mean(2) - 1.0 / 3.0).abs() < errors * (4.0_f64 / 45.0).sqrt(), "{}", mean(2));
    let largest = noise.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    assert!((0.99 * magnitude..=magnitude).contains(&largest), "{largest} of {magnitude}");
}

#[test]
fn parts_of_arrays_have_the_noise_of_the_whole() {
    for case in devices() {
        let added = |count, noise| {
            read(&add(case.tensor(&vec![0.0; count], [count]), noise, Category::Activation).unwrap())
        };
        let whole = Noise::new(SEED, "site", 7, 1.0);
        let [all, later] = [added(1000, whole), added(900, whole.from(100))];
        assert_eq!(all[100..], later, "{}", case.name());
        for other in [Noise::new(SEED, "other", 7, 1.0), Noise::new(SEED, "site", 8, 1.0)] {
            assert_ne!(added(1000, other), all, "{}", case.name());
        }
    }
}
