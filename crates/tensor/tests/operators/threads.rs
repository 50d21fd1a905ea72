use tensor::DType;

use crate::scenario::{Sizes, every_operator};
use crate::support::{bits, cpu};

/// Sizes for which every operator has several tasks.
const SIZES: Sizes = Sizes::new([3, 133, 66, 3, 301], DType::F32, DType::F32);

#[test]
fn results_have_the_same_bits_on_any_number_of_threads() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut results = vec![];
            every_operator(&cpu(), &SIZES, |operator, outputs| {
                results.push((operator, outputs.iter().map(|tensor| bits(tensor)).collect::<Vec<_>>()));
            });
            results
        })
    };
    let one = run(1);
    for threads in [2, 5] {
        for ((operator, expected), (_, actual)) in one.iter().zip(run(threads)) {
            assert!(*expected == actual, "{operator} differs on {threads} threads");
        }
    }
    assert!(one.iter().all(|(_, outputs)| outputs.iter().flatten().all(|v| f32::from_bits(*v).is_finite())));
}
