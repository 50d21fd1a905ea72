//! Mean number of multiprocessors that attention keeps busy, whose rows of tiles differ in length.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use device::{Schedule, TileRows};

/// Blocks that are simulated; lines before them keep all multiprocessors busy.
const MOST_BLOCKS: usize = 4096;

/// Returns the mean number of busy multiprocessors: the time of all tiles on one of them, divided by the time
/// until the last one is done. 0 without multiprocessors.
pub(crate) fn busy(rows: &TileRows, multiprocessors: u32) -> f64 {
    let count = multiprocessors as usize;
    let prologue = f64::from(rows.prologue) / f64::from(rows.tile[1].max(1));
    let mut line: Vec<f64> = rows.tiles().map(|tiles| tiles as f64).collect();
    let tiles: f64 = line.iter().sum();
    line.iter_mut().for_each(|tiles| *tiles += prologue);
    let lines = rows.lines as usize;
    let seconds = match rows.schedule {
        Schedule::Blocks { resident } => {
            if !rows.of_keys {
                // The last queries see the most keys.
                line.reverse();
            }
            let last = (MOST_BLOCKS / line.len().max(1)).clamp(1, lines.max(1));
            let before = (lines - last.min(lines)) as f64 * line.iter().sum::<f64>() / count as f64;
            before + last_block(&line.repeat(last), count, resident.max(1) as usize)
        }
        Schedule::Pairs => longest_queue(&line, lines, count, rows.first > 0),
    };
    if seconds > 0.0 { tiles * lines as f64 / seconds } else { 0.0 }
}

/// Returns when the last of `blocks` ends. Up to `resident` of them share a multiprocessor, which computes a
/// unit of their lengths in a second; the next block begins when one ends. Fewer blocks do not use all of a
/// multiprocessor: their speed is the square root of their part of `resident`.
fn last_block(blocks: &[f64], multiprocessors: usize, resident: usize) -> f64 {
    let mut next = blocks.iter().copied();
    let mut processors: Vec<Processor> = Vec::new();
    processors.resize_with(multiprocessors, Processor::default);
    for _ in 0..resident {
        for processor in &mut processors {
            next.by_ref().take(1).for_each(|length| processor.begin(length));
        }
    }
    // Times are not negative, so their bits order them.
    let end = |index: usize, processor: &Processor| {
        Some(Reverse((processor.first_end(resident)?.to_bits(), index)))
    };
    let mut ends: BinaryHeap<_> =
        processors.iter().enumerate().filter_map(|(index, processor)| end(index, processor)).collect();
    let mut last = 0.0;
    while let Some(Reverse((seconds, index))) = ends.pop() {
        last = f64::from_bits(seconds);
        let processor = &mut processors[index];
        processor.end_first(last);
        next.by_ref().take(1).for_each(|length| processor.begin(length));
        ends.extend(end(index, processor));
    }
    last
}

/// A multiprocessor with the blocks that it holds.
#[derive(Default)]
struct Processor {
    seconds: f64,
    /// Length that each block would have computed if it had been there from the beginning.
    computed: f64,
    /// Values of `computed` at which blocks end, the first one first.
    ends: VecDeque<f64>,
}

impl Processor {
    fn begin(&mut self, length: f64) {
        let end = self.computed + length;
        let index = self.ends.partition_point(|other| *other <= end);
        self.ends.insert(index, end);
    }

    /// Returns when the first block ends.
    fn first_end(&self, resident: usize) -> Option<f64> {
        let held = self.ends.len() as f64;
        let speed = (held / resident as f64).sqrt() / held;
        Some(self.seconds + (self.ends.front()? - self.computed) / speed)
    }

    fn end_first(&mut self, seconds: f64) {
        self.seconds = seconds;
        self.computed = self.ends.pop_front().unwrap_or(self.computed);
    }
}

/// Returns the longest work of a multiprocessor, if each takes every `multiprocessors`-th pair of a long and
/// a short row. `kernels/attention_hopper.cuh` says with which pair a line begins.
fn longest_queue(line: &[f64], lines: usize, multiprocessors: usize, is_piece: bool) -> f64 {
    let pairs = line.len().div_ceil(2).max(1);
    let items = pairs * lines;
    let blocks = multiprocessors.min(items);
    let each = (blocks / pairs).max(1);
    let length = |item: usize| {
        let of_line = item / pairs;
        let turn = if is_piece { of_line * (pairs * 5 / 8) } else { of_line / each };
        let pair = (item + turn) % pairs;
        let other = line.len() - 1 - pair;
        line[pair] + if other == pair { 0.0 } else { line[other] }
    };
    let queues = (0..blocks).map(|block| (block..items).step_by(blocks).map(length).sum());
    queues.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_share_multiprocessors() {
        // Four equal blocks on two multiprocessors with two each, at half the speed.
        assert_eq!(last_block(&[3.0; 4], 2, 2), 6.0);
        // One resident block: two rounds.
        assert_eq!(last_block(&[3.0; 4], 2, 1), 6.0);
        // A block alone has the square root of half the speed.
        assert!((last_block(&[1.0], 2, 2) - 2.0_f64.sqrt()).abs() < 1e-12);
        // The longest first leaves little waiting: 4 + 1, 3 + 2.
        assert_eq!(last_block(&[4.0, 3.0, 2.0, 1.0], 2, 1), 5.0);
        assert_eq!(last_block(&[], 2, 1), 0.0);
    }

    fn rows(schedule: Schedule, queries: u32, lines: u32, of_keys: bool) -> TileRows {
        let window = u32::MAX;
        TileRows {
            of_keys,
            tile: [64, 64],
            queries,
            first: 0,
            window,
            lines,
            passes: 1,
            tile_flops: 1,
            prologue: 128,
            schedule,
        }
    }

    #[test]
    fn few_rows_leave_multiprocessors_idle() {
        for schedule in [Schedule::Blocks { resident: 1 }, Schedule::Blocks { resident: 2 }, Schedule::Pairs]
        {
            for of_keys in [false, true] {
                let busy_for = |queries, lines| busy(&rows(schedule, queries, lines, of_keys), 132);
                // One row of one tile, with its prologue.
                assert!(busy_for(64, 1) < 1.0, "{schedule:?}");
                let [few, more, many] =
                    [(512, 4), (1024, 16), (4096, 64)].map(|(q, lines)| busy_for(q, lines));
                assert!(few < more && more < many && many < 132.0, "{schedule:?}: {few} {more} {many}");
                assert!(many > 110.0, "{schedule:?}: {many}");
                // Lines that are not simulated.
                let [most, even_more] = [(1024, 400), (1024, 4000)].map(|(q, lines)| busy_for(q, lines));
                assert!((most / even_more - 1.0).abs() < 0.05, "{schedule:?}: {most} {even_more}");
            }
        }
        assert_eq!(busy(&rows(Schedule::Pairs, 64, 1, false), 0), 0.0);
    }

    #[test]
    fn pairs_of_rows_are_equally_long() {
        // 8 rows of 1 to 8 tiles, each with a prologue of 2: pairs of 13. Two rounds of 132 of 264 pairs.
        let found = busy(&rows(Schedule::Pairs, 512, 66, false), 132);
        assert!((found - 36.0 * 66.0 / 26.0).abs() < 1e-9, "{found}");
        // One pair more needs a third round.
        let found = busy(&rows(Schedule::Pairs, 512, 67, false), 132);
        assert!((found - 36.0 * 67.0 / 39.0).abs() < 1e-9, "{found}");
    }
}
