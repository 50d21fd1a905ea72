//! The parameters of sharded layers.

use autograd::Weight;
use collective::Axis;
use tensor::Shape;

use super::{BranchPosition, ParameterRole, Parameters, Use};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::placements::{ParallelStyle, PlacementTable};
use crate::sharding::Sharding;
use crate::shards::Shards;

impl Parameters {
    /// Creates parameters of layers in `shards`, divided according to `placements`.
    #[must_use]
    pub fn in_shards(self, shards: Shards, placements: PlacementTable) -> Self {
        Parameters { shards, placements, ..self }
    }

    /// Numbers of shards of layers.
    pub fn shards(&self) -> Shards {
        self.shards
    }

    /// Returns whether rows between sharded layers are sharded too.
    pub fn shards_rows(&self) -> bool {
        self.shards.is_divided() && self.placements.shards_rows()
    }

    /// Returns the style in which the layer or parameter `name` is sharded; `None` if it is whole.
    pub fn style(&self, name: &str) -> Option<ParallelStyle> {
        self.placements.style(name).filter(|_| self.shards.is_divided()).cloned()
    }

    /// Returns the sharding of a parameter of shape `whole` in a layer of this style.
    ///
    /// # Errors
    /// The shards do not divide a dimension.
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

    /// Returns the rows of each part of a fused matrix of `rows` rows, as the placement table groups them.
    pub(super) fn fused_rows(&self, name: &str, rows: usize) -> Vec<usize> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        match self.placements.style(layer) {
            Some(ParallelStyle::Column(groups)) if groups.iter().sum::<usize>() == rows => groups.clone(),
            _ => vec![rows],
        }
    }

    /// Records that the parameter `name` stacks matrices of a hidden layer, of these numbers of rows.
    pub(crate) fn stack(&mut self, name: &str, rows: &[usize]) {
        for parameter in self.list.iter_mut().filter(|parameter| parameter.name == name) {
            parameter.role = ParameterRole::Hidden;
            parameter.matrices = rows.to_vec();
        }
    }

    /// Calls `make` for each local shard; the parameters that it creates belong to that shard. Calls it once
    /// for a layer that is not sharded.
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

    /// Creates the local shards of a parameter listed in the placement table, or the whole parameter.
    ///
    /// # Errors
    /// Errors of [`Parameters::create`], or the shards do not divide a dimension.
    pub fn create_shards(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Vec<Weight>> {
        let style = self.style(name);
        let sharding = self.sharding(shape, style.as_ref())?;
        self.for_each_shard(style.is_some(), |parameters| {
            parameters.create_sharded(name, sharding.clone(), init)
        })
    }

    /// Builds a branch whose shards are computed one after another, so that backward completes all gradients
    /// of a shard together.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn branch<T>(&mut self, make: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.branch += 1;
        self.position = Some(BranchPosition::Before);
        let made = make(self);
        self.position = None;
        made
    }

    /// Returns the branch and position of the next use.
    pub(super) fn next_position(&mut self) -> (usize, BranchPosition) {
        match (self.position, self.shard) {
            (Some(_), Some(shard)) => {
                self.position = Some(BranchPosition::After);
                (self.branch, BranchPosition::Shard(shard))
            }
            (Some(position), None) => (self.branch, position),
            (None, _) => {
                self.branch += 1;
                (self.branch, BranchPosition::Before)
            }
        }
    }

    /// Returns the uses of trained parameters in the reverse of the order in which backward completes their
    /// gradients.
    pub fn completion_order(&self) -> Vec<Use> {
        let mut uses = self.uses.clone();
        uses.sort_by_key(|used| used.position);
        uses
    }

    /// Returns the index among all shards of the shard being built; `None` outside
    /// [`Parameters::for_each_shard`], or if layers are whole.
    pub(crate) fn shard(&self) -> Option<usize> {
        let shard = self.shard?;
        Some(self.grid.map_or(shard, |grid| self.shards.coordinate(&grid, shard, Axis::Tensor)))
    }

    /// Creates a parameter with one use shared by all shards of a layer, or returns the parameter that the
    /// first shard created.
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
            let position = self.position;
            // It belongs to the shard that creates it first.
            if let (Some(_), Some(shard)) = (position, shard) {
                self.position = Some(BranchPosition::Shard(shard));
            }
            let made = self.create(name, shape, init);
            (self.shard, self.position) = (shard, position);
            self.copied.insert(name.to_owned(), made?.copied(self.shards.here));
        }
        let missing = || NnError::Parameter { name: name.to_owned(), problem: "used before it is made" };
        self.copied.get(name).cloned().ok_or_else(missing)
    }

    /// Returns `weight` for an operator on rows between layers, which are sharded if layers are.
    pub fn over_rows(&self, weight: Weight) -> Weight {
        if self.shards_rows() { weight.over_rows(self.shards.here) } else { weight }
    }

    /// Index along `axis` of the parts that belong to local shard `shard`.
    pub fn coordinate(&self, axis: Axis, shard: usize) -> usize {
        match &self.grid {
            Some(grid) => self.shards.coordinate(grid, shard, axis),
            None if axis == Axis::Tensor => shard,
            None => 0,
        }
    }
}
