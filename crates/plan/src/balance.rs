//! The distribution of lanes over data-parallel ranks: idle time and traffic of runs that are uneven, or no
//! subtrees.

use std::fmt;

use collective::RankTree;
use serde_json::{Value, json};
use telemetry::units::counted;
use worker::Setup;

use crate::error::Result;
use crate::plan::lanes;

/// The lanes of data-parallel ranks that do not run equally many, or whose sums are several parts of the
/// tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Data-parallel ranks.
    pub ranks: usize,
    /// Lanes of all ranks.
    pub lanes: usize,
    /// Micro-batches of a lane.
    pub micro_batches_per_lane: usize,
    /// Lanes of the first rank, which has most.
    pub most: usize,
    /// Lanes of the last rank, which has fewest.
    pub fewest: usize,
    /// Parts of the tree that all ranks sum together.
    pub parts: usize,
    /// The share of the passes' time in which a rank, on average, waits for those that run more lanes, or
    /// repeats a lane of another one, from 0 to 1.
    pub idle: f64,
    /// Whether ranks that share weights or gradients repeat a lane instead of a missing one.
    pub repeats: bool,
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
            most: runs.lanes_of(0),
            fewest: runs.lanes_of(ranks - 1),
            parts: tree.parts(),
            idle: runs.idle(),
            repeats: setup.config.parallel.shards_gradients(),
        };
        Ok(Some(balance).filter(|balance| balance.most > balance.fewest || balance.parts > ranks))
    }

    /// Returns the distribution under the keys of `plimsoll plan --json`.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "most_lanes": self.most,
            "fewest_lanes": self.fewest,
            "micro_batches_per_lane": self.micro_batches_per_lane,
            "idle": self.idle,
            "repeats_lanes": self.repeats,
            "parts": self.parts,
        })
    }

    /// The fewest ranks whose passes take as long.
    fn as_fast(&self) -> usize {
        self.lanes.div_ceil(self.most)
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Balance { ranks, lanes, most, fewest, parts, .. } = self;
        write!(f, "parallel.data = {ranks}: ")?;
        if most > fewest {
            let all = counted(*lanes as u64, "lane");
            let idle = 100.0 * self.idle;
            write!(f, "ranks run {fewest} or {most} of {all} and ")?;
            match self.repeats {
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
