//! Estimates of exposed communication: between ranks with the same weights, and between tensor- and
//! context-parallel ranks.
//!
//! A rank sends the others' parts of a bucket or unit over its host's links and the network ([`Links`]).
//! Gradients are sent while backward fills further buckets, and weights while passes compute before they need
//! them; only the excess is exposed.

use collective::Axis;
use parallel::data::{Lanes, Reduction};

use super::links::{Links, Peers};
use config::{RecomputePolicy, RunConfig};

/// Work and weights of the pipeline rank that has the most.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankWork {
    pub(super) parameters: f64,
    /// Mean elements of a unit's parameters.
    pub(super) unit: f64,
    /// Seconds of a micro-batch's forward pass.
    pub(super) forward: f64,
    /// Seconds of a micro-batch's backward pass, including recomputation.
    pub(super) backward: f64,
}

/// Computes the seconds of transfers.
struct Transfers<'a> {
    config: &'a RunConfig,
    links: Links,
    /// All ranks that train the same parameters.
    replicas: Peers,
    work: RankWork,
}

/// Returns the seconds of a step's exposed communication between ranks with the same parameters.
pub(super) fn exposed(config: &RunConfig, links: Links, work: RankWork) -> f64 {
    let grid = config.parallel.grid();
    let nearest = if config.parallel.context > 1 { Axis::Context } else { Axis::Data };
    let replicas = Peers::along(grid, nearest).first(grid.size_over(&[Axis::Data, Axis::Context]));
    let transfers = Transfers { config, links, replicas, work };
    match replicas.ranks {
        1 => 0.0,
        _ if config.parallel.shards_weights() => transfers.of_sharded_weights(),
        _ if config.parallel.shards_gradients() => transfers.of_sharded_gradients() + transfers.of_update(),
        _ if config.parallel.shards_optimizer() && config.parallel.owners() > 1 => {
            transfers.of_gradients(0.0) + transfers.of_update()
        }
        // Every rank receives the sums.
        _ => transfers.of_gradients(1.0),
    }
}

impl Transfers<'_> {
    /// Returns the ranks that exchange shards: a sharding group, or all replicas without sharding.
    fn ranks(&self) -> Peers {
        match self.config.parallel.owners() {
            1 => self.replicas,
            owners => self.replicas.first(owners),
        }
    }

    /// Returns the seconds in which owners of shards receive the gradients of `elements` parameters.
    fn gradients(&self, elements: f64) -> f64 {
        self.links.parts(self.ranks(), elements * self.config.precision.gradients.bytes() as f64)
    }

    /// Returns the seconds in which all ranks gather the weights of `elements` parameters.
    fn weights(&self, elements: f64) -> f64 {
        self.links.parts(self.ranks(), elements * self.config.precision.weight_dtype().bytes() as f64)
    }

    fn bucket(&self) -> f64 {
        let elements =
            self.config.parallel.bucket_bytes as f64 / self.config.precision.gradients.bytes() as f64;
        elements.min(self.work.parameters)
    }

    /// Returns the exposed seconds of reducing whole gradients during the last micro-batch's backward pass.
    /// They are reduced once per subtree that a rank's lanes form, plus `more` times.
    fn of_gradients(&self, more: f64) -> f64 {
        let runs = self.config.training_assignment();
        let parts = |rank: usize| Lanes::new(runs, rank).map_or(1, |lanes| lanes.parts());
        let parts = match self.config.parallel.reduction {
            Reduction::Tree => (0..runs.replicas()).map(parts).max().unwrap_or(1) as f64,
            Reduction::Library => 1.0,
        };
        let times = parts + more;
        let hidden = times * self.gradients(self.work.parameters) - self.work.backward;
        hidden.max(times * self.gradients(self.bucket()))
    }

    /// Returns the exposed seconds of gathering updated weights: the first are needed at once, the others
    /// during the next forward pass.
    fn of_update(&self) -> f64 {
        (self.weights(self.work.parameters) - self.work.forward).max(self.weights(self.bucket()))
    }

    /// Returns the seconds in which all sharding groups add their sums after the last round.
    fn over_groups(&self) -> f64 {
        let groups = self.config.training_assignment().groups();
        let owners = self.config.parallel.owners();
        let bytes = self.work.parameters / owners as f64 * self.config.precision.gradients.bytes() as f64;
        2.0 * self.links.parts(self.replicas.every(owners, groups), bytes)
    }

    /// Returns the seconds of exchanging gradients after each round of lanes, less the compute that hides
    /// them: the round's backward and the next forward pass.
    fn of_sharded_gradients(&self) -> f64 {
        let RankWork { parameters, forward, backward, .. } = self.work;
        let rounds = self.config.training_assignment().lanes_of(0) as f64;
        let exchange = self.gradients(parameters);
        let last = exchange + self.over_groups() - backward;
        (rounds - 1.0) * (exchange - forward - backward).max(0.0) + last.max(self.gradients(self.bucket()))
    }

    /// Returns the exposed seconds of gathering weights in every pass and exchanging gradients in every round
    /// of lanes.
    fn of_sharded_weights(&self) -> f64 {
        let RankWork { parameters, unit, forward, backward } = self.work;
        let assignment = self.config.training_assignment();
        let [rounds, passes] = [assignment.lanes_of(0), assignment.count(0)].map(|count| count as f64);
        let gather = self.weights(parameters);
        let exchange = self.gradients(parameters);
        // Recomputed segments of several units gather them again before backward does.
        let again = matches!(self.config.memory.recompute, RecomputePolicy::Segments(_));
        let gathers = if again { 2.0 * gather } else { gather };
        // Without prefetch, compute waits for each unit.
        let [forward, backward] = [forward, backward].map(|time| match self.config.parallel.prefetch {
            0 => 0.0,
            _ => time,
        });
        let beyond = |transfer: f64, compute: f64| (transfer - compute).max(0.0);
        let last = gathers + exchange + self.over_groups() - backward;
        let unit = unit.max(self.bucket());
        passes * beyond(gather, forward)
            + (passes - rounds) * beyond(gathers, backward)
            + (rounds - 1.0) * beyond(gathers + exchange, backward)
            + last.max(self.gradients(unit))
            + self.weights(unit)
    }
}

/// Seconds per micro-batch of exchanges among tensor- and context-parallel ranks.
pub(super) struct Exchange {
    /// Seconds per layer, in either pass, of exchanging two inputs and two partial results among
    /// tensor-parallel ranks.
    layer: f64,
    /// Seconds per layer of exchanging keys and values among context-parallel ranks, in the forward and in
    /// the backward pass.
    sequences: [f64; 2],
}

impl Exchange {
    /// Returns the exchanges of layers whose output has `output_bytes` bytes.
    pub(super) fn from_config(config: &RunConfig, output_bytes: f64, links: Links) -> Self {
        let parallel = &config.parallel;
        let samples = config.train.micro_batch_size as f64;
        let [tensor, context] = [Axis::Tensor, Axis::Context].map(|axis| Peers::along(parallel.grid(), axis));
        let element = config.precision.compute.bytes() as f64;
        // Partial results are in f32.
        let layer = links.parts(tensor, (1.0 + 4.0 / element) * 2.0 * output_bytes);
        let columns =
            config.model.cached_heads().map_or(0, |heads| heads.key_columns() + heads.value_columns());
        let values = samples * (config.model.examples().units() * columns) as f64 / tensor.ranks as f64;
        // Backward gathers them again and adds their gradients in f32.
        let sequences = [element, element + 4.0].map(|bytes| links.parts(context, bytes * values));
        Exchange { layer, sequences }
    }

    pub(super) fn forward(&self) -> f64 {
        self.layer + self.sequences[0]
    }

    pub(super) fn backward(&self) -> f64 {
        self.layer + self.sequences[1]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Links, RankWork, RunConfig, exposed};
    use crate::imitated::PlanDevice;

    /// Returns the exposed seconds for a hypothetical rank with a billion parameters whose passes take `pass`
    /// seconds.
    fn seconds(pass: f64, sets: &[&str]) -> f64 {
        let text = "[model]\nlayers = 4\n[data]\nkind = \"synthetic\"\n[train]\nmicro_batch_size = 1\n\
                    global_batch_size = 64\n[parallel]\ndata = 16\nlanes = 16\n\
                    [precision]\ncompute = \"bf16\"\n";
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = RunConfig::parse(text, "test.toml", Path::new("/"), &sets).unwrap();
        let links = Links::from_rates(&PlanDevice::shipped().unwrap().rates_or_shipped().unwrap().0, 8);
        exposed(&config, links, RankWork { parameters: 1e9, unit: 1e8, forward: pass, backward: 2.0 * pass })
    }

    #[test]
    fn lower_stages_are_no_slower() {
        for pass in [0.0, 1e-3, 1e-2, 1.0] {
            for lanes in ["parallel.lanes=16", "parallel.lanes=64"] {
                let stages = ["1", "2", "3"].map(|stage| format!("parallel.zero_stage={stage}"));
                let times = stages.map(|stage| seconds(pass, &[&stage, lanes]));
                assert!(times.is_sorted() && times[0] > 0.0, "{times:?} with passes of {pass} s, {lanes}");
            }
        }
    }

    #[test]
    fn what_compute_does_not_hide_is_exposed() {
        const WEIGHTS: &str = "parallel.zero_stage=3";
        let [few, many] =
            ["parallel.lanes=16", "parallel.lanes=64"].map(|lanes| seconds(0.0, &[WEIGHTS, lanes]));
        // Gradients are exchanged once a round instead of four times; weights are gathered twice for each of
        // four micro-batches.
        assert!(many > 1.2 * few, "{many} {few}");
        // Compute waits for units that are not prefetched.
        let [ahead, late] =
            ["1", "0"].map(|units| seconds(1.0, &[WEIGHTS, &format!("parallel.prefetch={units}")]));
        assert!(late > 5.0 * ahead, "{late} {ahead}");
        // Groups within a host send less over the network.
        let [all, groups] =
            ["0", "8"].map(|ranks| seconds(0.0, &[WEIGHTS, &format!("parallel.shard={ranks}")]));
        assert!(3.0 * groups < all, "{groups} {all}");
        assert_eq!(seconds(1.0, &["parallel.data=1"]), 0.0);
    }
}
