//! Sums of buckets over ranks.

use collective::{Collective, ProcessGroup, RankTree, TreeSum, shard, tree_sums};
use device::{Category, DType, Device, Request, StreamKind};
use tensor::Tensor;

use crate::data::options::Reduction;
use crate::error::Result;

/// Sums buckets over the ranks of a group; does nothing on one rank.
#[derive(Debug)]
pub(super) struct RankSums {
    device: Device,
    /// Each rank's number of parts, and the order of additions. A library sums one part per rank.
    tree: RankTree,
    /// Whether each rank needs only its own shard of a sum of gradients.
    scatters: bool,
    /// Buffers for [`Reduction::Tree`] on several ranks.
    scratch: Option<Scratch>,
}

/// Workspace for one shard of every part of a bucket.
#[derive(Debug)]
struct Scratch {
    gradients: Tensor,
    /// Workspace for the loss in f32, on the last stage.
    loss: Option<Tensor>,
}

/// A bucket to be summed.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// The rank's own parts; the sum replaces the first.
    pub(super) parts: Vec<Tensor>,
    /// Whether the bucket holds the loss, which every rank needs.
    pub(super) is_loss: bool,
}

impl RankSums {
    /// Allocates workspace for buckets of at most `largest` gradients and `loss` elements.
    pub(super) fn new(
        device: &Device,
        (reduction, tree, scatters): (Reduction, RankTree, bool),
        (largest, dtype): (usize, DType),
        loss: Option<usize>,
    ) -> Result<Self> {
        let scratch = match (reduction, tree.ranks()) {
            (Reduction::Library, _) | (_, 1) => None,
            (Reduction::Tree, _) => {
                let [largest, loss] = [Some(largest), loss]
                    .map(|elements| elements.map(|elements| tree.scratch_elements(elements)));
                Some(Scratch::new(device, largest.unwrap_or(0), dtype, loss)?)
            }
        };
        Ok(RankSums { device: device.clone(), tree, scatters, scratch })
    }

    /// Each rank's number of parts, and the order of additions.
    pub(super) fn tree(&self) -> &RankTree {
        &self.tree
    }

    /// Returns whether this crate adds in the order of the tree, instead of a library.
    pub(super) fn adds_in_tree(&self) -> bool {
        self.scratch.is_some()
    }

    /// Returns whether there are several ranks.
    pub(super) fn is_distributed(&self) -> bool {
        self.tree.ranks() > 1
    }

    /// Sums buckets on the reduce stream, after the compute work enqueued so far. `over`: backward has ended.
    /// The buckets must not be written until compute waits for the stream.
    pub(super) fn sum(&self, buckets: &[Bucket], over: bool, group: &ProcessGroup) -> Result<()> {
        const STREAM: StreamKind = StreamKind::Reduce;
        if buckets.is_empty() || !self.is_distributed() {
            return Ok(());
        }
        let filled = self.device.record(StreamKind::Compute)?;
        self.device.wait(STREAM, &filled)?;
        let Some(scratch) = &self.scratch else {
            return buckets.iter().try_for_each(|bucket| self.sum_by_library(bucket, group));
        };
        let scratch = |bucket| scratch.buffer(bucket, &self.tree);
        let scratch: Vec<_> = buckets.iter().map(scratch).collect::<Result<_>>()?;
        let pairs = buckets.iter().zip(&scratch);
        let sums = pairs.map(|(bucket, scratch)| {
            let everywhere = !self.scatters(bucket);
            TreeSum { parts: &bucket.parts, scratch, everywhere }
        });
        let sums: Vec<_> = sums.collect();
        Ok(tree_sums(group, &sums, &self.tree, over, STREAM)?)
    }

    fn sum_by_library(&self, bucket: &Bucket, group: &ProcessGroup) -> Result<()> {
        let tensor = &bucket.parts[0];
        if !self.scatters(bucket) {
            return Ok(group.run(
                Collective::AllReduce { region: tensor.region(), dtype: tensor.dtype() },
                StreamKind::Reduce,
            )?);
        }
        let part = shard(group, tensor, group.rank())?;
        Ok(group.run(
            Collective::ReduceScatter {
                input: tensor.region(),
                output: part.region(),
                dtype: tensor.dtype(),
            },
            StreamKind::Reduce,
        )?)
    }

    fn scatters(&self, bucket: &Bucket) -> bool {
        self.scatters && !bucket.is_loss
    }
}

impl Scratch {
    fn new(device: &Device, gradients: usize, dtype: DType, loss: Option<usize>) -> Result<Self> {
        let request = Request::new(Category::Communication, "reduction_scratch").on(StreamKind::Reduce);
        let gradients = Tensor::empty(device, [gradients], dtype, request)?;
        let loss = loss.map(|elements| Tensor::empty(device, [elements], DType::F32, request));
        Ok(Scratch { gradients, loss: loss.transpose()? })
    }

    /// Returns the workspace for a bucket.
    fn buffer(&self, bucket: &Bucket, tree: &RankTree) -> Result<Tensor> {
        let buffer = self.loss.as_ref().filter(|_| bucket.is_loss).unwrap_or(&self.gradients);
        Ok(buffer.view(0, [tree.scratch_elements(bucket.parts[0].elements())])?)
    }
}
