//! Division of a kernel's work into units, which blocks of threads compute.

/// The division of a kernel's work into units. Predictions need it for kernels with units of different length
/// or with padding, whose time does not follow from bytes, FLOPs and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Units of work. One multiprocessor computes a unit.
    pub units: Units,
    /// Whether the kernel draws random numbers for dropout.
    pub drops: bool,
}

/// Units of work of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// Units of equal length.
    Equal {
        /// Number of units.
        count: u64,
        /// FLOPs of all units, including padding.
        flops: u64,
    },
    /// Rows of attention's tiles.
    Rows(TileRows),
}

/// Rows of attention's tiles. A row belongs to some queries, and its tiles to the keys that these see; or a
/// row belongs to some keys, and its tiles to the queries that see them. A unit of work is a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TileRows {
    /// Whether rows are of keys and columns of queries; otherwise rows are of queries.
    pub of_keys: bool,
    /// Positions of a row, and of a tile's columns.
    pub tile: [u32; 2],
    /// Queries of a sequence.
    pub queries: u32,
    /// Position of the first query.
    pub first: u32,
    /// Number of keys that a query sees; at least all of them without a window.
    pub window: u32,
    /// Sequences times heads of the rows.
    pub lines: u32,
    /// Passes over the columns of a row: one for each query head of its keys, or one for queries.
    pub passes: u32,
    /// FLOPs of a tile in one pass, including hidden values and padding.
    pub tile_flops: u64,
    /// Columns of tiles that a multiprocessor could compute while it begins and ends a row.
    pub prologue: u32,
    /// Order of the rows on multiprocessors.
    pub schedule: Schedule,
}

/// Order in which multiprocessors compute rows of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Schedule {
    /// A block of threads for each row, the longest rows of a line first.
    Blocks {
        /// Blocks that a multiprocessor holds at once.
        resident: u32,
    },
    /// One block of threads for each multiprocessor. It takes pairs of a long and a short row of a line.
    Pairs,
}

impl TileRows {
    /// Returns the FLOPs of all tiles.
    #[must_use]
    pub fn flops(&self) -> u64 {
        let tiles = self.tiles().sum::<u64>().saturating_mul(u64::from(self.lines));
        tiles.saturating_mul(self.tile_flops)
    }

    /// Returns the number of tiles of each row of a line.
    pub fn tiles(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + use<> {
        let Self { of_keys, tile: [rows, columns], queries, first, window, passes, .. } = *self;
        let [rows, columns, queries] = [rows, columns, queries].map(|size| u64::from(size.max(1)));
        let [first, window] = [first, window.max(1)].map(u64::from);
        let positions = if of_keys { first + queries } else { queries };
        let tiles = move |row: u64| {
            let [begin, end] = [row * rows, ((row + 1) * rows).min(positions)];
            let [from, to] = match of_keys {
                // Queries from the first key on, until the last key has left the window.
                true => [begin.max(first), (end - 1 + window).min(first + queries)]
                    .map(|at| at.saturating_sub(first)),
                false => [(first + begin + 1).saturating_sub(window), first + end],
            };
            u64::from(passes) * to.div_ceil(columns).saturating_sub(from / columns)
        };
        let count = u32::try_from(positions.div_ceil(rows)).unwrap_or(u32::MAX);
        (0..count).map(move |row| tiles(u64::from(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_tiles_that_their_positions_see() {
        let all = |of_keys, tile, queries, first, window, passes| {
            let lines = 3;
            let schedule = Schedule::Pairs;
            TileRows {
                of_keys,
                tile,
                queries,
                first,
                window,
                lines,
                passes,
                tile_flops: 2,
                prologue: 0,
                schedule,
            }
        };
        const ALL: u32 = u32::MAX;
        for (rows, expected) in [
            (all(false, [4, 4], 12, 0, ALL, 1), &[1, 2, 3][..]),
            (all(true, [4, 4], 12, 0, ALL, 2), &[6, 4, 2]),
            // The last query of a row decides.
            (all(false, [8, 4], 12, 0, ALL, 1), &[2, 3]),
            (all(true, [8, 4], 12, 0, ALL, 1), &[3, 1]),
            // Windows begin within a tile.
            (all(false, [4, 4], 16, 0, 4, 1), &[1, 2, 2, 2]),
            (all(true, [4, 4], 16, 0, 4, 1), &[2, 2, 2, 1]),
            // Pieces: 8 keys come before the first query.
            (all(false, [4, 4], 8, 8, ALL, 1), &[3, 4]),
            (all(true, [4, 4], 8, 8, ALL, 1), &[2, 2, 2, 1]),
            (all(true, [4, 4], 8, 8, 3, 1), &[0, 1, 2, 1]),
        ] {
            assert_eq!(rows.tiles().collect::<Vec<_>>(), expected, "{rows:?}");
            assert_eq!(rows.flops(), 3 * 2 * expected.iter().sum::<u64>());
        }
    }
}
