//! Attention on the host: one task for [`BLOCK`] positions of one sequence, which owns those rows of the result.
//!
//! The backward pass of a block makes the tiles in which it is queries and those in which it is keys. Off the
//! diagonal a tile is so made twice, by two tasks; in return no task writes what another writes.

use device::parallel::{for_tasks, simd};
use device::{MatrixRef, gemm};

use super::Geometry;
use crate::ops::math::{exp, map_and_sum, max, sum2};

/// Positions of one task, and of one side of a tile.
const BLOCK: usize = 64;

/// Scores of a block of queries by a block of keys; rows lie [`BLOCK`] apart.
type Tile = [f32; BLOCK * BLOCK];

/// What the backward pass reads.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) dy: &'a [f32],
    pub(super) qkv: &'a [f32],
    pub(super) output: &'a [f32],
    pub(super) logsumexp: &'a [f32],
}

/// Some consecutive positions of one sequence and one head.
#[derive(Clone, Copy)]
struct Block {
    batch: usize,
    head: usize,
    first: usize,
    len: usize,
}

impl Geometry {
    fn blocks(&self) -> usize {
        self.time.div_ceil(BLOCK)
    }

    fn block(&self, batch: usize, head: usize, index: usize) -> Block {
        let first = index * BLOCK;
        Block { batch, head, first, len: BLOCK.min(self.time - first) }
    }

    /// Queries (0), keys (1) or values (2) of a block, `[len, head_width]`.
    fn third<'a>(&self, qkv: &'a [f32], block: Block, third: usize) -> MatrixRef<'a> {
        let row = block.batch * self.time + block.first;
        let start = row * 3 * self.width + third * self.width + block.head * self.head_width();
        MatrixRef::new(&qkv[start..], block.len, self.head_width(), 3 * self.width)
    }

    /// A block of an array with the output's layout, from its first element on.
    fn rows<'a>(&self, x: &'a [f32], block: Block) -> &'a [f32] {
        let row = block.batch * self.time + block.first;
        &x[row * self.width + block.head * self.head_width()..]
    }
}

pub(super) fn forward(geometry: Geometry, qkv: &[f32], output: &mut [f32], logsumexp: &mut [f32]) {
    let Geometry { time, width, heads, .. } = geometry;
    let blocks = output.chunks_mut(time * width).flat_map(|sequence| sequence.chunks_mut(BLOCK * width));
    let mut tasks: Vec<_> = blocks.map(|rows| (rows, Vec::with_capacity(heads))).collect();
    for (sequence, logsumexp) in logsumexp.chunks_mut(heads * time).enumerate() {
        for head in logsumexp.chunks_mut(time) {
            for (index, piece) in head.chunks_mut(BLOCK).enumerate() {
                tasks[sequence * geometry.blocks() + index].1.push(piece);
            }
        }
    }
    for_tasks(
        tasks.into_iter().enumerate().collect(),
        |(index, (rows, heads)): (usize, (&mut [f32], Vec<_>))| {
            let (batch, index) = (index / geometry.blocks(), index % geometry.blocks());
            for (head, logsumexp) in heads.into_iter().enumerate() {
                let queries = geometry.block(batch, head, index);
                forward_block(geometry, qkv, queries, &mut rows[head * geometry.head_width()..], logsumexp);
            }
        },
    );
}

/// Output and log-sum-exp of one block of queries of one head.
fn forward_block(geometry: Geometry, qkv: &[f32], queries: Block, out: &mut [f32], logsumexp: &mut [f32]) {
    let (width, head_width) = (geometry.width, geometry.head_width());
    let q = geometry.third(qkv, queries, 0);
    let mut tile: Tile = [0.0; BLOCK * BLOCK];
    let (mut largest, mut total) = ([f32::NEG_INFINITY; BLOCK], [0.0f32; BLOCK]);
    for index in 0..=queries.first / BLOCK {
        let keys = geometry.block(queries.batch, queries.head, index);
        let k = geometry.third(qkv, keys, 1);
        gemm(q, k.transposed(), &mut tile, BLOCK, geometry.scale(), false);
        simd(
            #[inline(always)]
            || {
                for (row, scores) in tile.chunks_exact_mut(BLOCK).take(queries.len).enumerate() {
                    let shrink =
                        exponentials(scores, visible(queries, row, keys), &mut largest[row], &mut total[row]);
                    if index > 0 {
                        out[row * width..][..head_width].iter_mut().for_each(|out| *out *= shrink);
                    }
                }
            },
        );
        let weights = MatrixRef::new(&tile, queries.len, keys.len, BLOCK);
        gemm(weights, geometry.third(qkv, keys, 2), out, width, 1.0, index > 0);
    }
    simd(
        #[inline(always)]
        || {
            for (row, logsumexp) in logsumexp.iter_mut().enumerate() {
                let inverse = 1.0 / total[row];
                out[row * width..][..head_width].iter_mut().for_each(|out| *out *= inverse);
                *logsumexp = (f64::from(largest[row]) + libm::log(f64::from(total[row]))) as f32;
            }
        },
    );
}

/// Turns a row's scores into e^(score − largest so far), zero beyond `visible`, and brings the row's largest score
/// and sum up to date. Gives the factor that earlier results of the row shrink by.
#[inline(always)]
fn exponentials(scores: &mut [f32], visible: usize, largest: &mut f32, total: &mut f32) -> f32 {
    let (seen, hidden) = scores.split_at_mut(visible);
    hidden.fill(0.0);
    let previous = *largest;
    let here = max(seen);
    *largest = if here > previous { here } else { previous };
    let shrink = exp(previous - *largest);
    *total = *total * shrink + map_and_sum(seen, |score| exp(score - *largest));
    shrink
}

/// How many of `keys` the query in `row` of its block sees.
#[inline(always)]
fn visible(queries: Block, row: usize, keys: Block) -> usize {
    (queries.first + row + 1 - keys.first).min(keys.len)
}

pub(super) fn backward(geometry: Geometry, given: Given<'_>, dqkv: &mut [f32]) {
    let columns = 3 * geometry.width;
    let sequences = dqkv.chunks_mut(geometry.time * columns);
    let tasks = sequences.flat_map(|sequence| sequence.chunks_mut(BLOCK * columns)).enumerate().collect();
    for_tasks(tasks, |(index, rows): (usize, &mut [f32])| {
        let (batch, index) = (index / geometry.blocks(), index % geometry.blocks());
        for head in 0..geometry.heads {
            backward_block(geometry, given, geometry.block(batch, head, index), rows);
        }
    });
}

/// The gradients of one block's queries, keys and values of one head; `rows` are all columns of the block.
fn backward_block(geometry: Geometry, given: Given<'_>, own: Block, rows: &mut [f32]) {
    let (columns, width, start) = (3 * geometry.width, geometry.width, own.head * geometry.head_width());
    let mut tiles = Tiles { weights: [0.0; BLOCK * BLOCK], slopes: [0.0; BLOCK * BLOCK] };
    for index in 0..=own.first / BLOCK {
        let keys = geometry.block(own.batch, own.head, index);
        tiles.make(geometry, given, own, keys);
        let slopes = MatrixRef::new(&tiles.slopes, own.len, keys.len, BLOCK);
        gemm(slopes, geometry.third(given.qkv, keys, 1), &mut rows[start..], columns, 1.0, index > 0);
    }
    // The last tile made is the diagonal one.
    for index in own.first / BLOCK..geometry.blocks() {
        let queries = geometry.block(own.batch, own.head, index);
        let diagonal = queries.first == own.first;
        if !diagonal {
            tiles.make(geometry, given, queries, own);
        }
        let slopes = MatrixRef::new(&tiles.slopes, queries.len, own.len, BLOCK).transposed();
        let q = geometry.third(given.qkv, queries, 0);
        gemm(slopes, q, &mut rows[width + start..], columns, 1.0, !diagonal);
        let weights = MatrixRef::new(&tiles.weights, queries.len, own.len, BLOCK).transposed();
        let dy = MatrixRef::new(geometry.rows(given.dy, queries), queries.len, geometry.head_width(), width);
        gemm(weights, dy, &mut rows[2 * width + start..], columns, 1.0, !diagonal);
    }
}

/// One tile of attention weights, and of the gradients of its scores times the scale.
struct Tiles {
    weights: Tile,
    slopes: Tile,
}

impl Tiles {
    fn make(&mut self, geometry: Geometry, given: Given<'_>, queries: Block, keys: Block) {
        let (width, head_width, scale) = (geometry.width, geometry.head_width(), geometry.scale());
        let q = geometry.third(given.qkv, queries, 0);
        gemm(q, geometry.third(given.qkv, keys, 1).transposed(), &mut self.weights, BLOCK, scale, false);
        let dy = geometry.rows(given.dy, queries);
        let v = geometry.third(given.qkv, keys, 2);
        gemm(
            MatrixRef::new(dy, queries.len, head_width, width),
            v.transposed(),
            &mut self.slopes,
            BLOCK,
            1.0,
            false,
        );
        let output = geometry.rows(given.output, queries);
        let start = (queries.batch * geometry.heads + queries.head) * geometry.time + queries.first;
        let logsumexp = &given.logsumexp[start..][..queries.len];
        let tiles = self.weights.chunks_exact_mut(BLOCK).zip(self.slopes.chunks_exact_mut(BLOCK));
        simd(
            #[inline(always)]
            || {
                for ((row, (weights, slopes)), logsumexp) in tiles.enumerate().zip(logsumexp) {
                    let (dy, output) =
                        (&dy[row * width..][..head_width], &output[row * width..][..head_width]);
                    let delta = sum2(dy, output, |dy, output| dy * output);
                    let visible = visible(queries, row, keys);
                    weights[visible..].fill(0.0);
                    slopes[visible..].fill(0.0);
                    for (weight, slope) in weights[..visible].iter_mut().zip(&mut slopes[..visible]) {
                        *weight = exp(*weight - logsumexp);
                        *slope = *weight * (*slope - delta) * scale;
                    }
                }
            },
        );
    }
}
