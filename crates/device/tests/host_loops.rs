//! Host matmuls and loops compared with plain code, and equal bits on any number of threads.

use device::parallel::{for_pieces, for_tasks, map, simd};
use device::{MatrixRef, gemm, gemm_then};

/// Returns pseudo-random values between −1 and 1 that depend only on `seed` and the index.
fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// One matmul: sizes, which operands are stored transposed, gap between rows, alpha, and whether it
/// accumulates.
#[derive(Clone, Copy, Debug)]
struct MatmulCase {
    rows: usize,
    columns: usize,
    inner: usize,
    transpose: (bool, bool),
    gap: usize,
    alpha: f32,
    accumulate: bool,
}

impl MatmulCase {
    fn run(self) -> Vec<f32> {
        let MatmulCase { rows, columns, inner, transpose, gap, alpha, accumulate } = self;
        let stored = |seed, rows: usize, columns: usize| values(seed, rows * (columns + gap));
        let a = if transpose.0 { stored(1, inner, rows) } else { stored(1, rows, inner) };
        let b = if transpose.1 { stored(2, columns, inner) } else { stored(2, inner, columns) };
        let a = match transpose.0 {
            true => MatrixRef::new(&a, inner, rows, rows + gap).transposed(),
            false => MatrixRef::new(&a, rows, inner, inner + gap),
        };
        let b = match transpose.1 {
            true => MatrixRef::new(&b, columns, inner, inner + gap).transposed(),
            false => MatrixRef::new(&b, inner, columns, columns + gap),
        };
        let mut out = values(3, rows * (columns + gap));
        gemm(a, b, &mut out, columns + gap, alpha, accumulate);
        out
    }

    /// Compares with the same matmul in f64, element by element, and checks that the gaps between rows are
    /// unchanged.
    fn check(self) {
        let MatmulCase { rows, columns, inner, transpose, gap, alpha, accumulate } = self;
        let stored = |seed, rows: usize, columns: usize| values(seed, rows * (columns + gap));
        let a = if transpose.0 { stored(1, inner, rows) } else { stored(1, rows, inner) };
        let b = if transpose.1 { stored(2, columns, inner) } else { stored(2, inner, columns) };
        let before = values(3, rows * (columns + gap));
        for (index, actual) in self.run().iter().enumerate() {
            let row = index / (columns + gap);
            let column = index % (columns + gap);
            if column >= columns {
                assert_eq!(*actual, before[index], "{self:?} wrote between rows");
                continue;
            }
            let a =
                |k: usize| if transpose.0 { a[k * (rows + gap) + row] } else { a[row * (inner + gap) + k] };
            let b = |k: usize| {
                if transpose.1 { b[column * (inner + gap) + k] } else { b[k * (columns + gap) + column] }
            };
            let sum: f64 = (0..inner).map(|k| f64::from(a(k)) * f64::from(b(k))).sum();
            let expected = f64::from(alpha) * sum + if accumulate { f64::from(before[index]) } else { 0.0 };
            let error = (f64::from(*actual) - expected).abs();
            assert!(
                error < 1e-5 * (inner as f64).sqrt().max(1.0),
                "{self:?} ({row}, {column}): off by {error:e}"
            );
        }
    }
}

#[test]
fn matmuls_of_many_shapes_agree_with_f64() {
    let sizes = [
        [1, 1, 1],
        [1, 40, 7],
        [40, 1, 7],
        [3, 5, 0],
        [33, 17, 9],
        [64, 64, 64],
        [130, 50, 513],
        [5, 70, 1100],
        [300, 31, 40],
        [257, 129, 65],
    ];
    for [rows, columns, inner] in sizes {
        for (number, transpose) in
            [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate()
        {
            let gap = [0, 3][number % 2];
            let alpha = [1.0, 0.37][number / 2];
            let accumulate = (rows + number).is_multiple_of(2);
            MatmulCase { rows, columns, inner, transpose, gap, alpha, accumulate }.check();
        }
    }
}

#[test]
fn matmul_bits_do_not_depend_on_the_number_of_threads() {
    for (rows, columns, inner) in [(1000, 70, 130), (97, 300, 700), (2048, 33, 16)] {
        let product = MatmulCase {
            rows,
            columns,
            inner,
            transpose: (false, true),
            gap: 0,
            alpha: 1.0,
            accumulate: false,
        };
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| product.run()).iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let one = on(1);
        assert!(one == on(2) && one == on(5), "{product:?}");
    }
}

#[test]
fn epilogues_see_every_finished_row_once() {
    let (rows, columns, inner) = (500, 37, 30);
    let a = values(1, rows * inner);
    let b = values(2, inner * columns);
    let a = MatrixRef::new(&a, rows, inner, inner);
    let b = MatrixRef::new(&b, inner, columns, columns);
    let mut plain = vec![0.0; rows * columns];
    let mut then = vec![0.0; rows * columns];
    gemm(a, b, &mut plain, columns, 1.0, false);
    gemm_then(a, b, &mut then, columns, 1.0, false, |finished| {
        assert!(finished.len().is_multiple_of(columns));
        finished.iter_mut().for_each(|v| *v = 2.0 * *v + 1.0);
    });
    assert!(plain.iter().zip(&then).all(|(plain, then)| 2.0 * plain + 1.0 == *then));
}

#[test]
#[should_panic(expected = "disagree")]
fn operands_that_do_not_fit_are_refused() {
    let a = values(1, 6);
    let b = values(2, 6);
    gemm(MatrixRef::new(&a, 2, 3, 3), MatrixRef::new(&b, 2, 3, 3), &mut [0.0; 9], 3, 1.0, false);
}

#[test]
fn loops_visit_every_element_once() {
    for length in [0usize, 1, 7, 8, 9, 1000] {
        let mut out = vec![0usize; length];
        for_pieces(&mut out, 8, |index, piece| {
            piece.iter_mut().enumerate().for_each(|(offset, value)| *value += index * 8 + offset);
        });
        assert!(out.iter().enumerate().all(|(index, value)| index == *value), "{length}");
        assert_eq!(map(length, |index| index * index), (0..length).map(|i| i * i).collect::<Vec<_>>());
        let mut doubled = out.clone();
        let tasks = doubled.chunks_mut(3).zip(out.chunks(3)).collect();
        for_tasks(tasks, |(doubled, out): (&mut [usize], &[usize])| {
            simd(|| doubled.iter_mut().zip(out).for_each(|(doubled, out)| *doubled += out));
        });
        assert!(doubled.iter().enumerate().all(|(index, value)| 2 * index == *value), "{length}");
    }
}
