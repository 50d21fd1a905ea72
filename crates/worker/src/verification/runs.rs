//! The runs of verified micro-batches, and the ranks that compute them.

use parallel::data::Assignment;
use serde::{Deserialize, Serialize};
use telemetry::hashes::HashedArray;

use crate::observers::tensor_hashes::Order;

/// One of up to three computations of a verified micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerificationRun {
    /// The computation within the step.
    Step,
    /// The repetition before the step, on another data-parallel rank if there is one.
    Repetition,
    /// A third one after a difference, to find the rank that computed wrongly.
    Third,
}

impl VerificationRun {
    /// The three runs, in order.
    #[cfg(test)]
    const ALL: [VerificationRun; 3] =
        [VerificationRun::Step, VerificationRun::Repetition, VerificationRun::Third];

    pub(super) fn name(self) -> &'static str {
        match self {
            VerificationRun::Step => "step",
            VerificationRun::Repetition => "repetition",
            VerificationRun::Third => "third",
        }
    }
}

/// Selects the micro-batch that is verified on each rank, and the ranks that run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// The step, from 0.
    pub(crate) step: u64,
    /// Index of the micro-batch among its replica's.
    pub(crate) micro_batch: usize,
    /// Number of data-parallel ranks.
    replicas: usize,
    /// Distance from a replica to the replica whose micro-batch it repeats.
    shift: usize,
}

impl Round {
    /// Returns the verification before step `step`, counted from 0, if every `every`th step is verified.
    /// Successive verifications rotate through pairs of replicas and through lanes. The first micro-batch of
    /// a lane is verified, because its gradients are not yet added to others.
    pub(crate) fn new(step: u64, every: u64, assignment: &Assignment) -> Self {
        let replicas = assignment.replicas();
        let round = (step + 1).checked_div(every).map_or(0, |rounds| rounds.saturating_sub(1));
        let shifts = replicas.saturating_sub(1).max(1) as u64;
        let shift = if replicas > 1 { 1 + (round % shifts) as usize } else { 0 };
        // The last replica has the fewest lanes.
        let lanes = assignment.lanes_of(replicas.saturating_sub(1)).max(1) as u64;
        let lane = (round / shifts % lanes) as usize;
        Round { step, micro_batch: lane * assignment.micro_batches_per_lane(), replicas, shift }
    }

    /// Returns the replica whose micro-batch `replica` computes in `run`.
    pub(crate) fn source(&self, replica: usize, run: VerificationRun) -> usize {
        (replica + self.distance(run)) % self.replicas.max(1)
    }

    /// Returns the replica that computes the micro-batch of replica `source` in `run`.
    pub(super) fn computer(&self, source: usize, run: VerificationRun) -> usize {
        (source + self.replicas - self.distance(run)) % self.replicas.max(1)
    }

    fn distance(&self, run: VerificationRun) -> usize {
        match run {
            VerificationRun::Step => 0,
            VerificationRun::Repetition => self.shift,
            // A third replica, or the one of the step.
            VerificationRun::Third if self.replicas < 3 => 0,
            VerificationRun::Third => 1 + self.shift % (self.replicas - 1),
        }
    }
}

/// The hash of one array of a verified micro-batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VerifiedArray {
    pub(super) order: Order,
    pub(super) array: HashedArray,
    pub(super) hash: u64,
}

/// The hashes of the arrays that one rank computed in its runs of verified micro-batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankRuns {
    pub(super) host: String,
    /// Description of the GPU, or of the processor if the rank has none.
    pub(super) device: String,
    /// Arrays of each [`Run`].
    pub(super) runs: [Vec<VerifiedArray>; 3],
}

#[cfg(test)]
mod tests {
    use parallel::data::Assignment;

    use super::{Round, VerificationRun};

    #[test]
    fn rounds_rotate_through_pairs_and_lanes() {
        let assignment = Assignment::contiguous(6, 3).with_lanes_of(4);
        let pairs = |round: u64| {
            let round = Round::new(10 * (round + 1) - 1, 10, &assignment);
            let sources = [0, 1, 2].map(|replica| round.source(replica, VerificationRun::Repetition));
            (sources, round.micro_batch)
        };
        let expected = [([1, 2, 0], 0), ([2, 0, 1], 0), ([1, 2, 0], 4), ([2, 0, 1], 4), ([1, 2, 0], 0)];
        assert_eq!([0, 1, 2, 3, 4].map(pairs), expected);
    }

    #[test]
    fn runs_are_on_as_many_replicas_as_there_are() {
        for replicas in 1..6 {
            for round in 0..8 {
                let round = Round::new(round, 1, &Assignment::contiguous(8, replicas));
                for source in 0..replicas {
                    let mut computers = VerificationRun::ALL.map(|run| round.computer(source, run)).to_vec();
                    let back = VerificationRun::ALL.map(|run| round.source(round.computer(source, run), run));
                    assert_eq!((computers[0], back), (source, [source; 3]));
                    computers.sort_unstable();
                    computers.dedup();
                    assert_eq!(computers.len(), replicas.min(3), "{replicas} {round:?}");
                }
            }
        }
    }
}
