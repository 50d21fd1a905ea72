//! The distribution of lanes over data-parallel ranks: idle time and traffic of runs that are uneven, or no
//! subtrees.

use std::fmt;

use collective::RankTree;
use serde::Serialize;
use telemetry::units::counted;
use worker::Setup;

use crate::error::Result;
use crate::plan::lanes;

/// The lanes of data-parallel ranks that do not run equally many, or whose sums are several parts of the
/// tree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Balance {
    /// Data-parallel ranks.
    #[serde(skip)]
    pub ranks: usize,
    /// Lanes of all ranks.
    #[serde(skip)]
    pub lanes: usize,
    /// Lanes of the first rank, which has most.
    pub most_lanes: usize,
    /// Lanes of the last rank, which has fewest.
    pub fewest_lanes: usize,
    /// Micro-batches of a lane.
    pub micro_batches_per_lane: usize,
    /// The share of the passes' time in which a rank, on average, waits for those that run more lanes, or
    /// repeats a lane of another one, from 0 to 1.
    pub idle: f64,
    /// Whether ranks that share weights or gradients repeat a lane instead of a missing one.
    pub repeats_lanes: bool,
    /// Parts of the tree that all ranks sum together.
    pub parts: usize,
}

impl Balance {
    /// Returns the distribution; `None` if all ranks run equally many lanes and have one part each.
    pub(crate) fn of(setup: &Setup) -> Result<Option<Self>> {
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

    /// The fewest ranks whose passes take as long.
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
