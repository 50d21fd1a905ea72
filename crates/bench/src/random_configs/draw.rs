//! Random numbers for configurations.

/// A stream of random numbers, selected by a seed and a number.
pub(super) struct Draw {
    key: [u32; 2],
    stream: u32,
    drawn: u32,
}

impl Draw {
    pub(super) fn new(seed: u64, stream: u32) -> Self {
        Draw { key: philox::key_of_name(seed, "bench predict"), stream, drawn: 0 }
    }

    /// Returns a uniform number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        let [word, ..] = philox::philox4x32(self.key, [self.stream, self.drawn, 0, 0]);
        self.drawn += 1;
        f64::from(word) / 4_294_967_296.0
    }

    /// Returns true with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns one of `options`, which must not be empty.
    pub(super) fn one<T: Clone>(&mut self, options: &[T]) -> T {
        let index = (self.unit() * options.len() as f64) as usize;
        options[index.min(options.len() - 1)].clone()
    }

    /// Returns a number from `low` to `high` whose logarithm is uniform.
    pub(super) fn spread(&mut self, low: usize, high: usize) -> usize {
        let (low, high) = (low as f64, high as f64);
        (low * (high / low).powf(self.unit())).round() as usize
    }

    /// Like [`Draw::spread`], rounded up to a multiple of `unit`.
    pub(super) fn multiple(&mut self, unit: usize, low: usize, high: usize) -> usize {
        self.spread(low, high).next_multiple_of(unit)
    }
}
