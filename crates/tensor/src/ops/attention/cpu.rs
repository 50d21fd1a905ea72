//! Attention on the host. One task computes [`BLOCK`] positions of one sequence and owns those rows of the
//! result.
//!
//! In the backward pass a task computes the tiles of its queries and then the tiles of its keys. Tiles off
//! the diagonal are computed twice, by two tasks, so that no two tasks write to the same memory.

use device::DType;
use device::parallel::{for_tasks, simd};

use super::geometry::{Geometry, KEY, QUERY, VALUE};
use super::heads::Heads;
use super::hiding::{Block, Hiding};
use super::tile::{BLOCK, Matrix, Panel, Tile, scores, weighted, weighted_transposed};
use crate::host_values::round_to;
use crate::ops::dropout::Mask;
use crate::ops::math::{exp, map_and_sum, max, sum2};
use crate::ops::pointwise::{soft_cap, soft_cap_slope};

/// Operands of the backward pass.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) dy: &'a [f32],
    /// The arrays that hold queries, keys and values.
    pub(super) qkv: &'a [&'a [f32]],
    pub(super) output: &'a [f32],
    pub(super) logsumexp: &'a [f32],
    pub(super) hiding: Hiding<'a>,
}

impl Geometry {
    fn blocks(&self) -> usize {
        self.time.div_ceil(BLOCK)
    }

    fn queries(&self, batch: usize, head: usize, index: usize) -> Block {
        let first = index * BLOCK;
        Block { batch, head, first: self.first + first, len: BLOCK.min(self.time - first) }
    }

    /// Returns the block of keys number `index`, cut off after the last key that a query sees.
    fn keys(&self, batch: usize, head: usize, index: usize) -> Block {
        let first = index * BLOCK;
        Block { batch, head, first, len: BLOCK.min(self.end() - first) }
    }

    /// Returns the queries, keys or values of a block, `[len, width]`.
    #[inline(always)]
    fn operand<'a>(&self, qkv: &[&'a [f32]], block: Block, part: usize) -> Matrix<'a> {
        let layout = self.parts[part];
        let row = match part {
            QUERY => self.row(block),
            _ => block.batch * self.keys + block.first,
        };
        let at = (row, block.len);
        self.rows(qkv[layout.array], at, self.column(part, block.head), self.width(part), layout.stride)
    }

    /// Returns the rows of a block in an array with the output's layout, `[len, width]`.
    #[inline(always)]
    fn plain<'a>(&self, x: &'a [f32], block: Block) -> Matrix<'a> {
        let row = (self.row(block), block.len);
        let width = self.heads.value_width;
        self.rows(x, row, block.head * width, width, self.heads.output_columns())
    }

    #[inline(always)]
    fn row(&self, queries: Block) -> usize {
        queries.batch * self.time + queries.first - self.first
    }

    #[inline(always)]
    fn rows<'a>(
        &self,
        x: &'a [f32],
        (row, rows): (usize, usize),
        start: usize,
        columns: usize,
        stride: usize,
    ) -> Matrix<'a> {
        Matrix { data: &x[row * stride + start..], rows, columns, stride }
    }
}

pub(super) fn forward(
    geometry: Geometry,
    qkv: &[&[f32]],
    hiding: Hiding<'_>,
    output_blc: &mut [f32],
    logsumexp_bhl: &mut [f32],
) {
    let Geometry { time, heads, .. } = geometry;
    let columns = heads.output_columns();
    let blocks =
        output_blc.chunks_mut(time * columns).flat_map(|sequence| sequence.chunks_mut(BLOCK * columns));
    let mut tasks: Vec<_> = blocks.map(|rows| (rows, Vec::with_capacity(heads.query))).collect();
    for (sequence, logsumexp) in logsumexp_bhl.chunks_mut(heads.query * time).enumerate() {
        for head in logsumexp.chunks_mut(time) {
            for (index, piece) in head.chunks_mut(BLOCK).enumerate() {
                tasks[sequence * geometry.blocks() + index].1.push(piece);
            }
        }
    }
    for_tasks(
        tasks.into_iter().enumerate().collect(),
        |(index, (rows, heads)): (usize, (&mut [f32], Vec<_>))| {
            let batch = index / geometry.blocks();
            let index = index % geometry.blocks();
            for (head, logsumexp) in heads.into_iter().enumerate() {
                let queries = geometry.queries(batch, head, index);
                let out = &mut rows[head * geometry.heads.value_width..];
                simd(
                    #[inline(always)]
                    || forward_block(geometry, qkv, hiding, queries, out, logsumexp),
                );
            }
        },
    );
}

/// Computes output and log-sum-exp of one block of queries of one head.
#[inline(always)]
fn forward_block(
    geometry: Geometry,
    qkv: &[&[f32]],
    hiding: Hiding<'_>,
    queries: Block,
    out: &mut [f32],
    logsumexp: &mut [f32],
) {
    let Heads { value_width: width, .. } = geometry.heads;
    let columns = geometry.heads.output_columns();
    let scale = geometry.scale();
    let q = geometry.operand(qkv, queries, QUERY);
    let (mut tile, mut panel): (Tile, Panel) = ([0.0; BLOCK * BLOCK], Panel::new());
    let mut largest = [f32::NEG_INFINITY; BLOCK];
    let mut total = [0.0f32; BLOCK];
    let begin = hiding.first_tile(geometry, queries);
    for index in begin..=last_tile(queries) {
        let keys = geometry.keys(queries.batch, queries.head, index);
        let causal = keys.first == queries.first;
        scores(q, geometry.operand(qkv, keys, KEY), causal, &mut tile, &mut panel);
        let before = largest;
        hide_and_scale(geometry, hiding, &mut tile, queries, keys, scale, &mut largest);
        exponentials(&mut tile, queries.len, &before, &largest, &mut total);
        if let Some(mask) = hiding.dropout {
            drop_weights(geometry, mask, queries, keys, &mut tile);
        }
        round_to(geometry.dtype, &mut tile);
        if index > begin {
            for (row, (before, largest)) in before.iter().zip(&largest).enumerate().take(queries.len) {
                let shrink = exp(before - finite(*largest));
                out[row * columns..][..width].iter_mut().for_each(|out| *out *= shrink);
            }
        }
        let v = geometry.operand(qkv, keys, VALUE);
        weighted(&tile, queries.len, v, causal, out, columns, index > begin, &mut panel);
    }
    for (row, logsumexp) in logsumexp.iter_mut().enumerate() {
        let inverse = match hiding.sinks {
            Some(sinks) => with_sink(sinks[queries.head], &mut largest[row], &mut total[row]),
            None => 1.0 / total[row],
        };
        out[row * columns..][..width].iter_mut().for_each(|out| *out *= inverse);
        *logsumexp = (f64::from(largest[row]) + libm::log(f64::from(total[row]))) as f32;
    }
}

/// Adds a sink to the maximum and sum of a row. Returns the factor that rescales the row's output. Returns
/// the factor by which the row's output is rescaled.
#[inline(always)]
fn with_sink(sink: f32, largest: &mut f32, total: &mut f32) -> f32 {
    let before = *largest;
    *largest = if sink > before { sink } else { before };
    let shrink = exp(before - *largest);
    *total = *total * shrink + exp(sink - *largest);
    shrink / *total
}

/// Scales and caps the scores, sets scores of hidden keys to −∞, and updates the maximum of each row. Hidden
/// scores take the same instructions as visible ones, so that all loops have one length.
#[inline(always)]
fn hide_and_scale(
    geometry: Geometry,
    hiding: Hiding<'_>,
    tile: &mut Tile,
    queries: Block,
    keys: Block,
    scale: f32,
    largest: &mut [f32; BLOCK],
) {
    for (row, (scores, largest)) in tile.chunks_exact_mut(BLOCK).zip(largest).enumerate().take(queries.len) {
        scores.iter_mut().for_each(|score| *score *= scale);
        if let Some(cap) = geometry.settings.soft_cap {
            scores.iter_mut().for_each(|score| *score = soft_cap(*score, cap));
        }
        scores[visible(queries, row, keys)..].fill(f32::NEG_INFINITY);
        scores[..hiding.before(geometry, queries, row, keys)].fill(f32::NEG_INFINITY);
        let here = max(scores);
        *largest = if here > *largest { here } else { *largest };
    }
}

/// Replaces scores by e^(score − maximum of the row) and updates each row's sum.
#[inline(always)]
fn exponentials(
    tile: &mut Tile,
    rows: usize,
    before: &[f32; BLOCK],
    largest: &[f32; BLOCK],
    total: &mut [f32; BLOCK],
) {
    for ((total, before), largest) in total.iter_mut().zip(before).zip(largest) {
        *total *= exp(before - finite(*largest));
    }
    for ((scores, total), largest) in tile.chunks_exact_mut(BLOCK).zip(total).zip(largest).take(rows) {
        let largest = finite(*largest);
        *total += map_and_sum(scores, |score| exp(score - largest));
    }
}

/// Returns `largest`, or 0 if no score of the row has been visible yet.
#[inline(always)]
fn finite(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}

/// Applies dropout: multiplies each weight of a tile by 0 or 1 / (1 − rate).
#[inline(always)]
fn drop_weights(geometry: Geometry, mask: Mask, queries: Block, keys: Block, tile: &mut Tile) {
    let line = (queries.batch * geometry.heads.query + queries.head) as u32;
    // Draws are numbered from the first query.
    for (query, row) in pairs(Block { first: queries.first - geometry.first, ..queries }) {
        for (key, column) in pairs(keys) {
            let [a, b, c, d] = mask.of_weights(line, query, key);
            tile[row * BLOCK + column] *= a;
            tile[row * BLOCK + column + PAIR] *= b;
            tile[(row + PAIR) * BLOCK + column] *= c;
            tile[(row + PAIR) * BLOCK + column + PAIR] *= d;
        }
    }
}

/// Distance between two positions whose dropout uses the same draw of random words.
const PAIR: usize = 8;

/// Returns the pairs of positions of a block: each pair's index in the sequence, and the block row of its
/// first position.
#[inline(always)]
fn pairs(block: Block) -> impl Iterator<Item = (u32, usize)> {
    let first = (block.first / 2) as u32;
    (0..(BLOCK / 2) as u32)
        .map(move |pair| (first + pair, pair as usize / PAIR * 2 * PAIR + pair as usize % PAIR))
}

/// Returns how many of `keys` the query in `row` of its block sees under the causal mask.
#[inline(always)]
fn visible(queries: Block, row: usize, keys: Block) -> usize {
    (queries.first + row + 1).saturating_sub(keys.first).min(keys.len)
}

/// Returns the index of the last tile of keys that any of `queries` sees.
#[inline(always)]
fn last_tile(queries: Block) -> usize {
    (queries.first + queries.len - 1) / BLOCK
}

/// Computes the gradients of queries, keys and values into arrays laid out as `operands.qkv`. If the queries
/// are a piece of the sequence, the caller zeroes the gradients of keys and values first.
pub(super) fn backward(geometry: Geometry, operands: Operands<'_>, gradients: Vec<&mut [f32]>) {
    let Geometry { batch, heads, .. } = geometry;
    let blocks = geometry.blocks().max(geometry.keys.div_ceil(BLOCK));
    let mut tasks: Vec<_> = (0..batch * blocks).map(|_| Vec::with_capacity(gradients.len())).collect();
    for (number, array) in gradients.into_iter().enumerate() {
        let time = if number == geometry.parts[QUERY].array { geometry.time } else { geometry.keys };
        let columns = array.len() / (batch * time);
        let mut sequences = array.chunks_mut(time * columns);
        for tasks in tasks.chunks_mut(blocks) {
            let rows = sequences.next().map(|rows| rows.chunks_mut(BLOCK * columns));
            let mut rows = rows.into_iter().flatten();
            tasks.iter_mut().for_each(|task| task.push(rows.next()));
        }
    }
    let tasks = tasks.into_iter().enumerate().collect();
    for_tasks(tasks, |(index, mut rows): (usize, Vec<Option<&mut [f32]>>)| {
        let batch = index / blocks;
        let index = index % blocks;
        for head in 0..heads.query {
            simd(
                #[inline(always)]
                || backward_block(geometry, operands, [batch, head, index], &mut rows),
            );
        }
    });
}

/// Computes the gradients of one block's queries, keys and values for one query head. `rows` are the block's
/// rows of every array. The first query head of a group overwrites the gradients of keys and values, and the
/// others add to them.
#[inline(always)]
fn backward_block(
    geometry: Geometry,
    operands: Operands<'_>,
    [batch, head, index]: [usize; 3],
    rows: &mut [Option<&mut [f32]>],
) {
    let mut tiles = Tiles::new();
    let mut panel = Panel::new();
    if index < geometry.blocks() {
        let own = geometry.queries(batch, head, index);
        backward_queries(geometry, operands, own, rows, (&mut tiles, &mut panel));
    }
    if index * BLOCK < geometry.end() {
        let own = geometry.keys(batch, head, index);
        backward_keys(geometry, operands, own, rows, (&mut tiles, &mut panel));
    }
}

#[inline(always)]
fn backward_queries(
    geometry: Geometry,
    operands: Operands<'_>,
    own: Block,
    rows: &mut [Option<&mut [f32]>],
    (tiles, panel): (&mut Tiles, &mut Panel),
) {
    let layout = geometry.parts[QUERY];
    let Some(rows) = &mut rows[layout.array] else { return };
    let dq = &mut rows[geometry.column(QUERY, own.head)..];
    let begin = operands.hiding.first_tile(geometry, own);
    for index in begin..=last_tile(own) {
        let keys = geometry.keys(own.batch, own.head, index);
        let causal = keys.first == own.first;
        tiles.make(geometry, operands, own, keys, panel);
        let k = geometry.operand(operands.qkv, keys, KEY);
        weighted(&tiles.slopes, own.len, k, causal, dq, layout.stride, index > begin, panel);
    }
}

/// Computes the gradients of a block's keys and values. Runs right after [`backward_queries`] of the same
/// block, whose last tile it reuses from `tiles`.
#[inline(always)]
fn backward_keys(
    geometry: Geometry,
    operands: Operands<'_>,
    own: Block,
    rows: &mut [Option<&mut [f32]>],
    (tiles, panel): (&mut Tiles, &mut Panel),
) {
    let begins = own.head.is_multiple_of(geometry.heads.group());
    let begin = own.first.saturating_sub(geometry.first) / BLOCK;
    for index in begin..geometry.blocks() {
        let queries = geometry.queries(own.batch, own.head, index);
        let causal = queries.first == own.first;
        if operands.hiding.is_beyond(geometry, queries, own) {
            break;
        }
        // The last tile of the block's queries is the diagonal one.
        if !(causal && geometry.is_whole()) {
            tiles.make(geometry, operands, queries, own, panel);
        }
        let q = geometry.operand(operands.qkv, queries, QUERY);
        let dy = geometry.plain(operands.dy, queries);
        for (part, tile, right) in [(KEY, &tiles.slopes, q), (VALUE, &tiles.weights, dy)] {
            let layout = geometry.parts[part];
            let Some(rows) = &mut rows[layout.array] else { return };
            let target = &mut rows[geometry.column(part, own.head)..];
            let accumulate = !(causal && begins && geometry.is_whole());
            weighted_transposed(tile, own.len, right, causal, target, layout.stride, accumulate, panel);
        }
    }
}

/// One tile: attention weights, scaled gradients of scores, and factors of dropout.
struct Tiles {
    weights: Tile,
    slopes: Tile,
    factors: Tile,
}

impl Tiles {
    fn new() -> Self {
        let zeros = [0.0; BLOCK * BLOCK];
        Tiles { weights: zeros, slopes: zeros, factors: zeros }
    }

    /// Computes both tiles; hidden elements are zero.
    #[inline(always)]
    fn make(
        &mut self,
        geometry: Geometry,
        operands: Operands<'_>,
        queries: Block,
        keys: Block,
        panel: &mut Panel,
    ) {
        let causal = keys.first == queries.first;
        let scale = geometry.scale();
        // The gradients of half types are rounded before they are scaled.
        let (inside, after) = if geometry.dtype == DType::F32 { (scale, 1.0) } else { (1.0, scale) };
        let (q, k) =
            (geometry.operand(operands.qkv, queries, QUERY), geometry.operand(operands.qkv, keys, KEY));
        scores(q, k, causal, &mut self.weights, panel);
        let dy = geometry.plain(operands.dy, queries);
        let output = geometry.plain(operands.output, queries);
        scores(dy, geometry.operand(operands.qkv, keys, VALUE), causal, &mut self.slopes, panel);
        let line = queries.batch * geometry.heads.query + queries.head;
        let start = line * geometry.time + queries.first - geometry.first;
        let logsumexp = &operands.logsumexp[start..][..queries.len];
        if let Some(mask) = operands.hiding.dropout {
            self.factors.fill(1.0);
            drop_weights(geometry, mask, queries, keys, &mut self.factors);
            self.slopes.iter_mut().zip(&self.factors).for_each(|(slope, factor)| *slope *= factor);
        }
        let tiles = self.weights.chunks_exact_mut(BLOCK).zip(self.slopes.chunks_exact_mut(BLOCK));
        for ((row, (weights, slopes)), logsumexp) in tiles.enumerate().zip(logsumexp) {
            let delta = sum2(dy.row(row), output.row(row), |dy, output| dy * output);
            let (visible, before) =
                (visible(queries, row, keys), operands.hiding.before(geometry, queries, row, keys));
            if let Some(cap) = geometry.settings.soft_cap {
                for (weight, slope) in weights.iter_mut().zip(&mut *slopes) {
                    let score = soft_cap(*weight * scale, cap);
                    *weight = exp(score - logsumexp);
                    *slope = *weight * (*slope - delta) * soft_cap_slope(score, cap) * inside;
                }
                for tile in [weights, slopes] {
                    tile[visible..].fill(0.0);
                    tile[..before].fill(0.0);
                }
                continue;
            }
            slopes[visible..].fill(0.0);
            weights[visible..].fill(f32::NEG_INFINITY);
            weights[..before].fill(f32::NEG_INFINITY);
            for (weight, slope) in weights.iter_mut().zip(slopes) {
                *weight = exp(*weight * scale - logsumexp);
                *slope = *weight * (*slope - delta) * inside;
            }
        }
        if operands.hiding.dropout.is_some() {
            self.weights.iter_mut().zip(&self.factors).for_each(|(weight, factor)| *weight *= factor);
        }
        if geometry.dtype != DType::F32 {
            round_to(geometry.dtype, &mut self.weights);
            round_to(geometry.dtype, &mut self.slopes);
            self.slopes.iter_mut().for_each(|slope| *slope *= after);
        }
    }
}
