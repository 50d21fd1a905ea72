//! Loops on the host: multi-threaded, in chunks that depend on shapes only, with the processor's widest
//! vectors.

use rayon::prelude::*;

/// Elements per task in an element-wise loop.
pub const CHUNK: usize = 1 << 14;

/// Runs `body` compiled for the widest vector instructions of this processor. Rust never fuses a
/// multiplication and an addition by itself, so results do not depend on the instructions chosen.
#[inline(always)]
pub fn simd<R>(body: impl FnOnce() -> R) -> R {
    struct Body<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Body<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Body(body))
}

/// Calls `body(index, piece)` for each piece of `piece_len` elements of `out`, in parallel if there are
/// several.
pub fn for_pieces<T: Send>(out: &mut [T], piece_len: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    if out.len() <= piece_len {
        if !out.is_empty() {
            body(0, out);
        }
    } else {
        pieces_in_parallel(out, piece_len, &body);
    }
}

/// Calls `body(index)` for every index below `count`, in parallel, and returns the results in order.
pub fn map<T: Send>(count: usize, body: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    map_in_parallel(count, &body)
}

/// Calls `body` for each task, in parallel if there are several. For loops that write several slices: each
/// task holds its own parts of them.
pub fn for_tasks<T: Send>(tasks: Vec<T>, body: impl Fn(T) + Sync + Send) {
    if tasks.len() <= 1 {
        tasks.into_iter().for_each(body);
    } else {
        tasks_in_parallel(tasks, &body);
    }
}

// Rayon's loops are much code: behind a call of `dyn Fn` they are compiled for each type, not for each loop.

fn pieces_in_parallel<T: Send>(out: &mut [T], piece_len: usize, body: &(dyn Fn(usize, &mut [T]) + Sync)) {
    out.par_chunks_mut(piece_len).enumerate().for_each(|(index, piece)| body(index, piece));
}

fn map_in_parallel<T: Send>(count: usize, body: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
    (0..count).into_par_iter().map(body).collect()
}

fn tasks_in_parallel<T: Send>(tasks: Vec<T>, body: &(dyn Fn(T) + Sync)) {
    tasks.into_par_iter().for_each(body);
}
