//! The parameters of sharded layers.

use autograd::Weight;
use collective::Axis;
use tensor::Shape;

use super::{Parameters, Turn, Use};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::placements::{ParallelStyle, PlacementTable};
use crate::sharding::Sharding;
use crate::shards::Shards;

impl Parameters {
    /// Returns the same list for layers in `shards`, which divide parameters by `placements`.
    #[must_use]
    pub fn in_shards(self, shards: Shards, placements: PlacementTable) -> Self {
        Parameters { shards, placements, ..self }
    }

    /// The shards of layers.
    pub fn shards(&self) -> Shards {
        self.shards
    }

    /// Returns whether ranks have shards of the rows between sharded layers.
    pub fn shards_rows(&self) -> bool {
        self.shards.is_divided() && self.placements.shards_rows()
    }

    /// The style in which the layer or parameter `name` is divided; `None` if it is whole.
    pub fn style(&self, name: &str) -> Option<ParallelStyle> {
        self.placements.style(name).filter(|_| self.shards.is_divided()).cloned()
    }

    /// The sharding of a parameter of shape `whole` of a layer that is divided by `style`.
    ///
    /// # Errors
    /// A dimension that the shards do not divide.
    pub(crate) fn sharding(
        &self,
        whole: impl Into<Shape>,
        style: Option<&ParallelStyle>,
    ) -> Result<Sharding> {
        let whole = Sharding::replicated(whole);
        let all = self.shards.all;
        match style {
            None => Ok(whole),
            Some(ParallelStyle::Column(groups)) if groups.is_empty() => whole.divided(Axis::Tensor, 0, all),
            Some(ParallelStyle::Column(groups)) => whole.divided_in_groups(Axis::Tensor, 0, all, groups),
            Some(ParallelStyle::Row) => whole.divided(Axis::Tensor, 1, all),
        }
    }

    /// Calls `make` for each shard that is here; the parameters that it makes belong to the shard. Of a layer
    /// that is not sharded it is called once.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn for_each_shard<T>(
        &mut self,
        is_sharded: bool,
        mut make: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        if !is_sharded || !self.shards.is_divided() {
            return Ok(vec![make(self)?]);
        }
        let mut all = Vec::with_capacity(self.shards.here);
        for shard in 0..self.shards.here {
            self.shard = Some(shard);
            let made = make(self);
            self.shard = None;
            all.push(made?);
        }
        Ok(all)
    }

    /// Makes the shards that are here of a parameter named in the table of placements, or the whole
    /// parameter.
    ///
    /// # Errors
    /// As for [`Parameters::create`]; a dimension that the shards do not divide.
    pub fn create_shards(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Vec<Weight>> {
        let style = self.style(name);
        let sharding = self.sharding(shape, style.as_ref())?;
        self.for_each_shard(style.is_some(), |parameters| {
            parameters.create_sharded(name, sharding.clone(), init)
        })
    }

    /// Makes a branch of a layer, whose shards are computed one after the other, so that backward completes
    /// the gradients of a shard together.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn branch<T>(&mut self, make: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.branch += 1;
        self.turn = Some(Turn::Before);
        let made = make(self);
        self.turn = None;
        made
    }

    /// The turn of the next use.
    pub(super) fn next_turn(&mut self) -> (usize, Turn) {
        match (self.turn, self.shard) {
            (Some(_), Some(shard)) => {
                self.turn = Some(Turn::After);
                (self.branch, Turn::Shard(shard))
            }
            (Some(turn), None) => (self.branch, turn),
            (None, _) => {
                self.branch += 1;
                (self.branch, Turn::Before)
            }
        }
    }

    /// The uses of trained parameters in the order in which backward completes their gradients, from the
    /// last.
    pub fn completion_order(&self) -> Vec<Use> {
        let mut uses = self.uses.clone();
        uses.sort_by_key(|used| used.turn);
        uses
    }

    /// The number among all shards of the shard whose parameters are made now; `None` outside
    /// [`Parameters::for_each_shard`], and if layers are whole.
    pub(crate) fn shard(&self) -> Option<usize> {
        let shard = self.shard?;
        Some(self.grid.map_or(shard, |grid| self.shards.coordinate(&grid, shard, Axis::Tensor)))
    }

    /// Makes a parameter with one use that all shards of a layer share, or returns the one that the first
    /// shard has made.
    pub(crate) fn create_copied(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        init: Init,
    ) -> Result<Weight> {
        if !self.shards.is_divided() {
            return self.create(name, shape, init);
        }
        if !self.copied.contains_key(name) {
            let shard = self.shard.take();
            let turn = self.turn;
            // It belongs to the shard that makes it first.
            if let (Some(_), Some(shard)) = (turn, shard) {
                self.turn = Some(Turn::Shard(shard));
            }
            let made = self.create(name, shape, init);
            (self.shard, self.turn) = (shard, turn);
            self.copied.insert(name.to_owned(), made?.copied(self.shards.here));
        }
        let missing = || NnError::Parameter { name: name.to_owned(), problem: "used before it is made" };
        self.copied.get(name).cloned().ok_or_else(missing)
    }

    /// Returns `weight` for an operator on the rows between layers, which are in shards if layers are.
    pub fn over_rows(&self, weight: Weight) -> Weight {
        if self.shards_rows() { weight.over_rows(self.shards.here) } else { weight }
    }

    /// Index along `axis` of the parts in this list that belong to shard `shard` of those that are here.
    pub fn coordinate(&self, axis: Axis, shard: usize) -> usize {
        match &self.grid {
            Some(grid) => self.shards.coordinate(grid, shard, axis),
            None if axis == Axis::Tensor => shard,
            None => 0,
        }
    }
}
