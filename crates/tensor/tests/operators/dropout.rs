use device::Category;
use tensor::ops::dropout::{Mask, apply};

use crate::support::{LENGTHS, devices, read};
use crate::trial::Trial;

const SEED: u64 = 3;

/// Returns the factors of `count` elements by definition.
fn factors(site: &str, micro_batch: u64, probability: f64, count: usize) -> Vec<f64> {
    let key = philox::key_of_name(SEED, site);
    let [a, b, ..] = philox::philox4x32(key, [micro_batch as u32, (micro_batch >> 32) as u32, 0, 0]);
    let threshold = (probability * 4_294_967_296.0) as u32;
    let word = |i: usize| philox::philox4x32([a, b], [(i / 4) as u32, ((i / 4) >> 32) as u32, 0, 0])[i % 4];
    let scale = 1.0 / (1.0 - f64::from(threshold) / 4_294_967_296.0);
    (0..count).map(|i| if word(i) < threshold { 0.0 } else { scale }).collect()
}

/// Tests that elements are dropped by their random words, and others scaled.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (length, probability) in LENGTHS.into_iter().flat_map(|n| [(n, 0.1), (n, 0.5), (n, 0.9)]) {
        trial.label(format!("{length} {probability}"));
        let mask = Mask::new(SEED, "site", 1 << 33, probability);
        let (x, x_wide) = trial.operand("x", [length]);
        let apart = apply(x.clone(), mask, Category::Activation).unwrap();
        trial.rounded_output("operand in use", &x, || x_wide.clone());
        trial.output("output", &apart, || {
            let factors = factors("site", 1 << 33, probability, length);
            if length > 10_000 {
                let dropped = factors.iter().filter(|factor| **factor == 0.0).count() as f64;
                assert!(
                    (dropped / length as f64 - probability).abs() < 0.01,
                    "{length} {probability}: {dropped}"
                );
            }
            x_wide.iter().zip(&factors).map(|(x, factor)| x * factor).collect()
        });
        let address = x.region().buffer.address();
        let in_place = apply(x, mask, Category::Activation).unwrap();
        assert_eq!(in_place.region().buffer.address(), address, "{}", trial.what("in place"));
        trial.same("output in place", &in_place, &apart);
    }
    trial.label("1000 0".into());
    let (x, x_wide) = trial.operand("x", [1000]);
    let output = apply(x, Mask::new(SEED, "site", 0, 0.0), Category::Activation).unwrap();
    trial.rounded_output("output that keeps all elements", &output, || x_wide);
}

#[test]
fn sites_micro_batches_and_seeds_have_different_masks() {
    let factors = |seed, site: &str, micro_batch| {
        let case = &devices()[0];
        let ones = case.tensor(&[1.0; 256], [256]);
        read(&apply(ones, Mask::new(seed, site, micro_batch, 0.5), Category::Activation).unwrap())
    };
    let one = factors(1, "a", 0);
    assert_eq!(one, factors(1, "a", 0));
    for other in [factors(1, "b", 0), factors(1, "a", 1), factors(2, "a", 0), factors(1, "a", 1 << 32)] {
        let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!((80..176).contains(&same), "{same} of 256 are the same");
    }
}
