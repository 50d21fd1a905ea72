//! Losses of low precisions stay near those of f32.

use super::{History, history};
use crate::common::runs::GPT;

#[test]
fn low_precisions_learn_as_f32_does() {
    let run = |more: &[&str]| {
        history(GPT, &[&["model.width=64", "train.steps=20", "optim.learning_rate=3e-3"][..], more].concat())
    };
    let losses = |of: &History| of.losses.iter().map(|loss| f32::from_bits(*loss)).collect::<Vec<_>>();
    let reference = run(&[]);
    let single = losses(&reference);
    assert!(single[19] < single[0] - 0.5, "{single:?}");
    let table: [&[&str]; 6] = [
        &["precision.compute=bf16"],
        &["precision.compute=bf16", "precision.weights=f32"],
        &["precision.compute=f16", "precision.weights=f32", "precision.scaler.init_scale=1024"],
        &["optim.state=bf16"],
        &["optim.state=8bit"],
        &["precision.compute=bf16", "precision.weights=f32", "optim.state=8bit"],
    ];
    let mut all = vec![reference];
    for more in table {
        let found = run(more);
        let off = losses(&found).iter().zip(&single).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 0.03, "{more:?}: off by {off}");
        assert!(all.iter().all(|other| other.weights != found.weights), "{more:?} changes nothing");
        all.push(found);
    }
}
