//! A model of matmul times: waves of tiles over the multiprocessors, and the bytes of the operands.

/// A tile of the output, which one multiprocessor computes at a time.
struct Tile {
    rows: f64,
    columns: f64,
    /// FLOP/s relative to the largest tile.
    speed: f64,
}

/// Tiles of libraries' algorithms. The last three also serve f32 without tensor cores.
const TILES: [Tile; 10] = [
    Tile { rows: 128.0, columns: 256.0, speed: 1.0 },
    Tile { rows: 256.0, columns: 128.0, speed: 1.0 },
    Tile { rows: 128.0, columns: 192.0, speed: 0.97 },
    Tile { rows: 192.0, columns: 128.0, speed: 0.95 },
    Tile { rows: 64.0, columns: 256.0, speed: 0.8 },
    Tile { rows: 256.0, columns: 64.0, speed: 0.75 },
    Tile { rows: 64.0, columns: 128.0, speed: 0.7 },
    Tile { rows: 128.0, columns: 128.0, speed: 0.92 },
    Tile { rows: 128.0, columns: 64.0, speed: 0.7 },
    Tile { rows: 64.0, columns: 64.0, speed: 0.45 },
];
/// Number of tiles above for tensor cores only.
const HALF_TILES: usize = 7;
/// Fraction of the idle time in a partial last wave of tiles that counts as time of a matmul. It is below 1
/// because a tile of the next wave begins as soon as any tile ends.
const WHOLE_WAVES: f64 = 0.25;
/// Numbers of parts into which the sum over k may be split, so that more multiprocessors work on one tile
/// (split-K).
const SPLITS: [f64; 7] = [1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0];
/// Minimum number of terms in a part of a split sum.
const FEWEST_TERMS: f64 = 256.0;
/// Size (m = n = k) of the matmul from which a device's rate is measured.
const LARGE: f64 = 8192.0;
/// Time to start and finish a tile, in terms of its sum over k.
const TERMS_OF_ENDS: f64 = 128.0;

/// Rate of large matmuls of one combination of dtypes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatmulRate {
    /// FLOP/s of large matmuls.
    pub(super) large: f64,
    /// Whether tensor cores compute it.
    pub(super) is_half: bool,
}

/// The device properties that determine matmul times.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatmulModel {
    pub(super) rate: MatmulRate,
    pub(super) multiprocessors: f64,
    pub(super) memory_bytes: f64,
    pub(super) kernel_seconds: f64,
}

impl MatmulModel {
    /// Returns the seconds of a matmul of m, n and k that moves `bytes` bytes.
    pub(super) fn seconds(&self, size: [f64; 3], bytes: f64) -> f64 {
        let large = 2.0 * LARGE.powi(3) / self.rate.large;
        let unit = large / self.waves([LARGE; 3], 0.0);
        self.kernel_seconds
            + (unit * self.waves(size, self.memory_bytes * unit)).max(bytes / self.memory_bytes)
    }

    /// Returns the time with the fastest tile shape, in a device-dependent unit. `written` is the number of
    /// bytes that memory moves in that unit, to account for split-K's partial sums; 0 ignores them.
    fn waves(&self, [m, n, k]: [f64; 3], written: f64) -> f64 {
        let tiles = if self.rate.is_half { &TILES[..] } else { &TILES[HALF_TILES..] };
        let mut best = f64::INFINITY;
        for Tile { rows, columns, speed } in tiles {
            let count = (m / rows).ceil() * (n / columns).ceil();
            for split in SPLITS {
                let terms = (k / split).ceil();
                if split > 1.0 && (terms < FEWEST_TERMS || written == 0.0) {
                    break;
                }
                let waves = count * split / self.multiprocessors;
                let waves = (waves + WHOLE_WAVES * (waves.ceil() - waves)).max(1.0);
                let tile = rows * columns * (terms + TERMS_OF_ENDS) / speed;
                let sums = if split > 1.0 { 8.0 * split * m * n / written } else { 0.0 };
                best = best.min(waves * tile + sums);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: MatmulModel = MatmulModel {
        rate: MatmulRate { large: 800e12, is_half: true },
        multiprocessors: 132.0,
        memory_bytes: 4.2e12,
        kernel_seconds: 3e-6,
    };

    fn rate([m, n, k]: [f64; 3]) -> f64 {
        2.0 * m * n * k / MODEL.seconds([m, n, k], 2.0 * (m * k + k * n + m * n))
    }

    #[test]
    fn large_matmuls_reach_the_rate_and_others_less() {
        assert!((rate([LARGE; 3]) / 800e12 - 1.0).abs() < 0.01);
        // One tile more than a whole wave takes part of another wave.
        let [whole, more] = [132.0, 133.0].map(|tiles| MODEL.seconds([128.0 * tiles, 256.0, 4096.0], 0.0));
        assert!(more > 1.1 * whole, "{more} {whole}");
        // Short sums and few rows are slower.
        assert!(rate([8192.0, 8192.0, 64.0]) < 0.5 * rate([LARGE; 3]));
        assert!(rate([64.0, 8192.0, 8192.0]) < 0.5 * rate([LARGE; 3]));
        // Long sums with few tiles are split.
        assert!(rate([768.0, 768.0, 65536.0]) > 0.5 * rate([LARGE; 3]));
    }
}
