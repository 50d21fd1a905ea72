//! Sums of gradients in shards (ZeRO stages 2 and 3), where ranks run lanes in turn.
//!
//! In round k on d ranks, rank r runs lane k·d + r. When a rank has filled a bucket, it sends each rank that
//! rank's shard. It adds the shards received, of d consecutive lanes, like a binary counter: each of the
//! fewest subtrees that cover the lanes is summed and then joins the sums that wait for their right sibling.
//! If d is a power of two, a round is one subtree.
//!
//! If there are several groups that share state, each runs contiguous lanes. After the last round, the ranks
//! with the same index in all groups add up the groups' subtrees.

mod buffers;
mod losses;
mod rounds;

use collective::{
    Collective, DividedGroup, ProcessGroup, RankTree, TreeSum, exchange_shards, shard, tree_sums,
};
use device::{Category, Device, Request, StreamKind};
use tensor::ops::tree::SumTree;
use tensor::{Tensor, ops};

use super::phase::SinkPhase;
use super::step_sums::{Progress, StepSums};
use crate::data::assignment::Assignment;
use crate::data::options::{Reduction, ReductionOptions};
use crate::error::Result;
use buffers::BucketBuffers;
use losses::LaneLosses;
use rounds::{LaneRounds, Subtree};

const STREAM: StreamKind = StreamKind::Reduce;

/// The shards of sums that a rank owns, and buffers for whole buckets until they are sent.
#[derive(Debug)]
pub(super) struct RoundSums {
    device: Device,
    rounds: LaneRounds,
    reduction: Reduction,
    /// Whole buckets of the current lane.
    buffers: BucketBuffers,
    /// Workspace for one shard from every rank.
    scratch: Tensor,
    /// By set and bucket: shards of sums that wait for their right sibling in the tree.
    sets: Vec<Vec<Tensor>>,
    /// Sums over groups, if there are several.
    groups: Option<GroupSums>,
    /// The losses of this rank's lanes, on the last stage.
    losses: Option<LaneLosses>,
    micro_batch: usize,
}

/// The order of adding the sums of all groups, with a workspace for one shard of each part.
#[derive(Debug)]
struct GroupSums {
    tree: RankTree,
    scratch: Tensor,
}

/// Returns the number of gradient sets that a rank keeps for lanes in turn, and the number that hold its
/// group's sum after the last round. Groups with different numbers of lanes may differ.
#[must_use]
pub fn round_sets(assignment: Assignment, rank: usize, reduction: Reduction) -> (usize, usize) {
    let rounds = LaneRounds::new(assignment, rank, reduction);
    (rounds.sets(), rounds.parts())
}

impl RoundSums {
    /// Allocates the buffers for buckets of `elements` gradients each.
    pub(super) fn new(device: &Device, elements: &[usize], options: ReductionOptions) -> Result<Self> {
        let rounds = LaneRounds::new(options.assignment, options.rank, options.reduction);
        let (owners, _) = options.owners();
        let dtype = options.dtype;
        let request = Request::new(Category::Gradient, "gradient_shard");
        let part = |elements: &usize| Tensor::zeros(device, [elements / owners], dtype, request);
        let set = |_| elements.iter().map(part).collect::<tensor::Result<Vec<_>>>();
        let sets = (0..rounds.sets()).map(set).collect::<tensor::Result<Vec<_>>>()?;
        let is_whole = options.assignment.micro_batches_per_lane() > 1;
        let buffers = BucketBuffers::new(device, elements, dtype, is_whole)?;
        let request = Request::new(Category::Communication, "reduction_scratch").on(STREAM);
        let largest = elements.iter().copied().max().unwrap_or(0);
        let scratch = Tensor::empty(device, [largest], dtype, request)?;
        let group_scratch = |tree: RankTree| -> Result<GroupSums> {
            let elements = tree.scratch_elements(largest / owners);
            Ok(GroupSums { scratch: Tensor::empty(device, [elements], dtype, request)?, tree })
        };
        let groups = rounds.group_tree()?.map(group_scratch).transpose()?;
        let losses = options.loss.then(|| LaneLosses::new(device, &options));
        Ok(RoundSums {
            device: device.clone(),
            rounds,
            reduction: options.reduction,
            buffers,
            scratch,
            sets,
            groups,
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
        for Subtree { run, set, joins } in self.rounds.subtrees(round) {
            let lanes = run.start - self.rounds.lanes_of_round(round).start..;
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

    /// Sums a bucket over all groups; every group gets the sum.
    fn sum_over_groups(&self, bucket: usize, group: &ProcessGroup) -> Result<()> {
        let Some(GroupSums { tree, scratch }) = &self.groups else { return Ok(()) };
        let parts: Vec<_> = self.sets[..self.rounds.parts()].iter().map(|set| set[bucket].clone()).collect();
        let first = &parts[0];
        if self.reduction == Reduction::Library {
            return Ok(
                group.run(Collective::AllReduce { region: first.region(), dtype: first.dtype() }, STREAM)?
            );
        }
        let scratch = scratch.view(0, [tree.scratch_elements(first.elements())])?;
        let sum = TreeSum { parts: &parts, scratch: &scratch, everywhere: true };
        Ok(tree_sums(group, &[sum], tree, false, STREAM)?)
    }

    fn per_lane(&self) -> usize {
        self.rounds.micro_batches_per_lane()
    }

    fn accumulates(&self, micro_batch: usize) -> bool {
        !micro_batch.is_multiple_of(self.per_lane())
    }
}

impl StepSums for RoundSums {
    fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    fn micro_batches(&self) -> usize {
        self.rounds.rounds() * self.per_lane()
    }

    fn advance(&mut self, count: usize) {
        self.micro_batch += count;
    }

    fn phase(&self, micro_batch: usize) -> SinkPhase {
        SinkPhase {
            accumulates: self.accumulates(micro_batch),
            reduces: !self.accumulates(micro_batch + 1),
            is_transient: false,
            senders: self.rounds.lanes_of_round(micro_batch / self.per_lane()).len(),
            folds: 0,
        }
    }

    fn buffer(&mut self, bucket: usize) -> Result<Tensor> {
        self.buffers.take(bucket)
    }

    /// After a lane's last micro-batch, sends the bucket to the owners of its shards.
    fn filled(&mut self, bucket: usize, _: Progress, group: &DividedGroup) -> Result<()> {
        if self.accumulates(self.micro_batch + 1) {
            return Ok(());
        }
        let round = self.micro_batch / self.per_lane();
        let whole = self.buffers.take(bucket)?;
        if self.reduction == Reduction::Library && !self.rounds.has_lane(round) {
            // A library adds the buckets of all ranks, so that this one must be zero.
            whole.zero()?;
        }
        self.device.wait(STREAM, &self.device.record(StreamKind::Compute)?)?;
        match self.reduction {
            Reduction::Tree => {
                let senders = self.rounds.lanes_of_round(round).len();
                let scratch = self.scratch.view(0, [whole.elements()])?;
                let shards = exchange_shards(&group.within, &whole, senders, &scratch, STREAM)?;
                self.fold(bucket, round, &shards)?;
            }
            Reduction::Library => {
                let own = shard(&group.within, &whole, group.within.rank())?;
                group.within.run(
                    Collective::ReduceScatter {
                        input: whole.region(),
                        output: own.region(),
                        dtype: whole.dtype(),
                    },
                    STREAM,
                )?;
                self.fold(bucket, round, &[own])?;
            }
        }
        self.buffers.sent(bucket, self.device.record(STREAM)?);
        if round + 1 == self.rounds.rounds() {
            self.sum_over_groups(bucket, &group.across)?;
        }
        Ok(())
    }

    fn add_loss(&mut self, loss: &Tensor) -> Result<()> {
        let lane = self.micro_batch / self.per_lane();
        let accumulates = self.accumulates(self.micro_batch);
        self.losses.as_ref().map_or(Ok(()), |losses| losses.add(lane, loss, accumulates))
    }

    fn finish(&mut self, group: &DividedGroup) -> Result<()> {
        if let Some(losses) = &self.losses {
            losses.sum(&group.all)?;
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
