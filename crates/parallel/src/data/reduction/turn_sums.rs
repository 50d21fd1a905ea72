//! Sums of gradients in shards (ZeRO stages 2 and 3), where ranks run lanes in turn.
//!
//! In round k of d ranks, rank r runs lane k·d + r. When it has filled a bucket, it sends each rank that
//! rank's shard of it, and adds what it receives, shards of d consecutive lanes, as a binary counter does: the
//! fewest subtrees that cover the lanes are added up, and each joins the sums that wait for their right
//! sibling. If d is a power of two, a round is one subtree.

mod buffers;
mod losses;

use std::ops::Range;

use collective::{DataPlane, exchange_shards, shard};
use device::{Category, Device, Request, StreamKind};
use tensor::ops::tree::{SumTree, joins, subtrees};
use tensor::{Tensor, ops};

use super::SinkPhase;
use super::step_sums::{Progress, StepSums};
use crate::data::assignment::Assignment;
use crate::data::options::{Reduction, ReductionOptions};
use crate::error::Result;
use buffers::BucketBuffers;
use losses::LaneLosses;

const STREAM: StreamKind = StreamKind::Reduce;

/// The shards of sums that a rank owns, and the buffers of whole buckets on their way there.
#[derive(Debug)]
pub(super) struct TurnSums {
    device: Device,
    turns: Turns,
    reduction: Reduction,
    /// Whole buckets of the current lane.
    buffers: BucketBuffers,
    /// A shard of every rank's bucket.
    scratch: Tensor,
    /// By set and bucket, the shards of sums that wait for their right sibling. The first are the step's sums
    /// in the end.
    sets: Vec<Vec<Tensor>>,
    /// The losses of this rank's lanes, on the last stage.
    losses: Option<LaneLosses>,
    micro_batch: usize,
}

impl TurnSums {
    /// Allocates the buffers for buckets of `elements` gradients each.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(device: &Device, elements: &[usize], options: ReductionOptions) -> Result<Self> {
        let turns = Turns::new(options.assignment, options.reduction);
        let (ranks, dtype) = (options.ranks(), options.dtype);
        let request = Request::new(Category::Gradient, "gradient_shard");
        let part = |elements: &usize| Tensor::zeros(device, [elements / ranks], dtype, request);
        let set = |_| elements.iter().map(part).collect::<tensor::Result<Vec<_>>>();
        let sets = (0..turns.sets()).map(set).collect::<tensor::Result<Vec<_>>>()?;
        let is_whole = options.assignment.micro_batches_per_lane() > 1;
        let buffers = BucketBuffers::new(device, elements, dtype, is_whole)?;
        let request = Request::new(Category::Communication, "reduction_scratch").on(STREAM);
        let largest = elements.iter().copied().max().unwrap_or(0);
        let scratch = Tensor::empty(device, [largest], dtype, request)?;
        let losses = options.loss.then(|| LaneLosses::new(device, turns.assignment, options.rank));
        Ok(TurnSums {
            device: device.clone(),
            turns,
            reduction: options.reduction,
            buffers,
            scratch,
            sets,
            losses: losses.transpose()?,
            micro_batch: 0,
        })
    }

    /// The shards of the sums after the last micro-batch, by bucket.
    pub(super) fn sums(&self) -> &[Tensor] {
        &self.sets[0]
    }

    /// Adds the shards of a round's lanes to the sums.
    fn fold(&self, bucket: usize, round: usize, shards: &[Tensor]) -> Result<()> {
        for Subtree { run, set, joins } in self.turns.subtrees(round) {
            let lanes = run.start - self.turns.lanes_of_round(round).start..;
            let parts = &shards[lanes][..run.len()];
            let waits = &self.sets[..set];
            let target = if joins == 0 { &self.sets[set][bucket] } else { &parts[0] };
            ops::tree::into_on(target, parts, &SumTree::balanced(parts.len()), STREAM)?;
            let mut upper = target;
            for lower in waits.iter().rev().take(joins) {
                ops::add::into_on(&lower[bucket], upper, STREAM)?;
                upper = &lower[bucket];
            }
        }
        Ok(())
    }

    fn per_lane(&self) -> usize {
        self.turns.assignment.micro_batches_per_lane()
    }

    fn accumulates(&self, micro_batch: usize) -> bool {
        !micro_batch.is_multiple_of(self.per_lane())
    }
}

impl StepSums for TurnSums {
    fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    fn micro_batches(&self) -> usize {
        self.turns.rounds() * self.per_lane()
    }

    fn advance(&mut self, count: usize) {
        self.micro_batch += count;
    }

    fn phase(&self, micro_batch: usize) -> SinkPhase {
        SinkPhase {
            accumulates: self.accumulates(micro_batch),
            reduces: !self.accumulates(micro_batch + 1),
            is_transient: false,
            senders: self.turns.lanes_of_round(micro_batch / self.per_lane()).len(),
        }
    }

    fn buffer(&mut self, bucket: usize) -> Result<Tensor> {
        self.buffers.take(bucket)
    }

    /// After a lane's last micro-batch, sends the bucket to the owners of its shards.
    fn filled(&mut self, bucket: usize, _: Progress, plane: &mut dyn DataPlane) -> Result<()> {
        if self.accumulates(self.micro_batch + 1) {
            return Ok(());
        }
        let round = self.micro_batch / self.per_lane();
        let whole = self.buffers.filled(bucket)?;
        self.device.wait(STREAM, &self.device.record(StreamKind::Compute)?)?;
        match self.reduction {
            Reduction::Tree => {
                let senders = self.turns.lanes_of_round(round).len();
                let scratch = self.scratch.view(0, [whole.elements()])?;
                let shards = exchange_shards(plane, &whole, senders, &scratch, STREAM)?;
                self.fold(bucket, round, &shards)?;
            }
            Reduction::Library => {
                let own = shard(plane, &whole, plane.rank())?;
                plane.reduce_scatter(whole.region(), own.region(), whole.dtype(), STREAM)?;
                self.fold(bucket, round, &[own])?;
            }
        }
        self.buffers.sent(bucket, self.device.record(STREAM)?);
        Ok(())
    }

    fn add_loss(&mut self, loss: &Tensor) -> Result<()> {
        let lane = self.micro_batch / self.per_lane();
        let accumulates = self.accumulates(self.micro_batch);
        self.losses.as_ref().map_or(Ok(()), |losses| losses.add(lane, loss, accumulates))
    }

    fn finish(&mut self, plane: &mut dyn DataPlane) -> Result<()> {
        if let Some(losses) = &self.losses {
            losses.sum(plane)?;
        }
        let reduced = self.device.record(STREAM)?;
        self.device.wait(StreamKind::Compute, &reduced)?;
        self.micro_batch = 0;
        Ok(())
    }

    fn loss(&self) -> Option<Tensor> {
        Some(self.losses.as_ref()?.total().clone())
    }
}

/// The rounds of lanes in turn, and the tree in which they are added.
#[derive(Clone, Copy, Debug)]
struct Turns {
    assignment: Assignment,
    /// Lanes that a round adds, the last one perhaps fewer, and those of the whole tree. A library adds a
    /// round's lanes itself, to one.
    each: usize,
    all: usize,
}

/// A subtree of which a round completes all lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subtree {
    run: Range<usize>,
    /// Number of sums to its left that wait for their right sibling.
    set: usize,
    /// Number of these that it joins.
    joins: usize,
}

impl Turns {
    fn new(assignment: Assignment, reduction: Reduction) -> Self {
        let rounds = assignment.lanes_of(0);
        let (each, all) = match reduction {
            Reduction::Tree => (assignment.replicas(), assignment.lanes()),
            Reduction::Library => (1, rounds),
        };
        Turns { assignment, each, all }
    }

    fn rounds(&self) -> usize {
        self.assignment.lanes_of(0)
    }

    fn lanes_of_round(&self, round: usize) -> Range<usize> {
        (round * self.each).min(self.all)..((round + 1) * self.each).min(self.all)
    }

    /// The fewest subtrees that cover a round's lanes, in order.
    fn subtrees(&self, round: usize) -> impl Iterator<Item = Subtree> {
        let all = self.all;
        subtrees(all, self.lanes_of_round(round)).map(move |run| {
            let set = subtrees(all, 0..run.start).count();
            Subtree { set, joins: joins(all, 0, run.clone()).into(), run }
        })
    }

    /// Number of sets in which sums wait.
    fn sets(&self) -> usize {
        let all = (0..self.rounds()).flat_map(|round| self.subtrees(round));
        all.map(|subtree| subtree.set + usize::from(subtree.joins == 0)).max().unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::{Assignment, Reduction, Turns};

    #[test]
    fn rounds_of_a_power_of_two_need_logarithmically_many_sets() {
        let sets = |lanes, ranks| Turns::new(Assignment::in_turn(lanes, ranks), Reduction::Tree).sets();
        for (lanes, ranks, expected) in
            [(1, 1, 1), (2, 2, 1), (8, 8, 1), (8, 4, 1), (8, 2, 2), (16, 2, 3), (8, 1, 3)]
        {
            assert_eq!(sets(lanes, ranks), expected, "{lanes} on {ranks}");
        }
        for (lanes, ranks, expected) in [(8, 3, 3), (8, 7, 3), (12, 5, 3), (35, 6, 4)] {
            assert_eq!(sets(lanes, ranks), expected, "{lanes} on {ranks}");
        }
        assert_eq!(Turns::new(Assignment::in_turn(8, 3), Reduction::Library).sets(), 1);
    }

    #[test]
    fn rounds_add_up_the_tree_over_all_lanes() {
        for lanes in 1..40 {
            let whole = Turns::new(Assignment::in_turn(lanes, lanes), Reduction::Tree);
            assert_eq!(sum(&whole).len(), 1);
            for ranks in 1..=lanes {
                assert_eq!(sum(&Turns::new(Assignment::in_turn(lanes, ranks), Reduction::Tree)), sum(&whole));
            }
        }
    }

    /// The sums at the end of a step, in words.
    fn sum(turns: &Turns) -> Vec<String> {
        fn balanced(lanes: std::ops::Range<usize>) -> String {
            match lanes.len() {
                1 => lanes.start.to_string(),
                count => {
                    let middle = lanes.start + count.next_power_of_two() / 2;
                    format!("({}+{})", balanced(lanes.start..middle), balanced(middle..lanes.end))
                }
            }
        }
        let mut waiting: Vec<String> = Vec::new();
        for round in 0..turns.rounds() {
            for subtree in turns.subtrees(round) {
                assert_eq!(waiting.len(), subtree.set);
                let mut upper = balanced(subtree.run);
                for _ in 0..subtree.joins {
                    upper = format!("({}+{upper})", waiting.pop().unwrap());
                }
                waiting.push(upper);
                assert!(waiting.len() <= turns.sets());
            }
        }
        waiting
    }
}
