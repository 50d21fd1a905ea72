//! How lanes are distributed over data-parallel ranks: the idle time and extra traffic of uneven
//! distributions.

use std::fmt;

use collective::RankTree;
use serde::Serialize;
use telemetry::units::counted;
use worker::Setup;

use crate::error::Result;
use crate::plan::lanes;

/// An uneven distribution of lanes over data-parallel ranks: ranks run different numbers of lanes, or a
/// rank's lanes are several subtrees of the reduction tree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Balance {
    /// Number of data-parallel ranks.
    #[serde(skip)]
    pub ranks: usize,
    /// Number of lanes in a step, over all ranks.
    #[serde(skip)]
    pub lanes: usize,
    /// Number of lanes of the first rank, which has the most.
    pub most_lanes: usize,
    /// Number of lanes of the last rank, which has the fewest.
    pub fewest_lanes: usize,
    /// Number of micro-batches of a lane.
    pub micro_batches_per_lane: usize,
    /// Fraction of the passes' time, from 0 to 1, in which the mean rank waits for ranks with more lanes or
    /// repeats another rank's lane.
    pub idle: f64,
    /// Whether a rank with fewer lanes repeats a lane instead of waiting, because it shares weights or
    /// gradients.
    pub repeats_lanes: bool,
    /// Number of subtree sums that all ranks add together.
    pub parts: usize,
}

impl Balance {
    /// Returns the distribution of lanes; `None` if all ranks run equally many lanes and each rank's lanes
    /// are one subtree.
    pub(crate) fn from_setup(setup: &Setup) -> Result<Option<Self>> {
        let runs = setup.config.training_assignment();
        let ranks = runs.replicas();
        let tree = match setup.config.parallel.shards_gradients() {
            true => RankTree::balanced(ranks),
            false => lanes(setup, 0)?.rank_tree().unwrap_or_else(|_| RankTree::balanced(ranks)),
        };
        let balance = Balance {
            ranks,
            lanes: runs.lanes(),
            micro_batches_per_lane: runs.micro_batches_per_lane(),
            most_lanes: runs.lanes_of(0),
            fewest_lanes: runs.lanes_of(ranks - 1),
            parts: tree.parts(),
            idle: runs.idle(),
            repeats_lanes: setup.config.parallel.shards_gradients(),
        };
        Ok(Some(balance).filter(|balance| balance.most_lanes > balance.fewest_lanes || balance.parts > ranks))
    }

    /// Returns the smallest number of ranks whose busiest rank has no more lanes than now.
    fn as_fast(&self) -> usize {
        self.lanes.div_ceil(self.most_lanes)
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Balance { ranks, lanes, most_lanes: most, fewest_lanes: fewest, parts, .. } = self;
        write!(f, "parallel.data = {ranks}: ")?;
        if most > fewest {
            let all = counted(*lanes as u64, "lane");
            let idle = 100.0 * self.idle;
            write!(f, "ranks run {fewest} or {most} of {all} and ")?;
            match self.repeats_lanes {
                true => write!(
                    f,
                    "those with fewer repeat a lane of another rank, unused, or wait, {idle:.1} % of the \
                     passes' time"
                )?,
                false => write!(f, "wait {idle:.1} % of the passes' time")?,
            }
            if self.as_fast() < *ranks {
                write!(f, ", so that {} ranks would be as fast", self.as_fast())?;
            }
        }
        if parts > ranks {
            let comma = if most > fewest { "; " } else { "" };
            let share = *parts as f64 / *ranks as f64;
            write!(
                f,
                "{comma}their lanes are {parts} subtrees, so that they send {share:.2} x as much for a sum \
                 as with one subtree each"
            )?;
        }
        Ok(())
    }
}
