use tensor::DType;

use crate::support::{bits, cpu};
use crate::trial::follow_all;

#[test]
fn results_have_the_same_bits_on_any_number_of_threads() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut results = vec![];
            follow_all(&cpu(), [DType::F32; 2], &mut |operator, part, result| {
                results.push((operator, part, bits(result)));
            });
            results
        })
    };
    let one = run(1);
    for threads in [2, 5] {
        for ((operator, part, expected), (_, _, actual)) in one.iter().zip(run(threads)) {
            assert!(*expected == actual, "{operator} {part} differs on {threads} threads");
        }
    }
    assert!(one.len() > 500);
}
