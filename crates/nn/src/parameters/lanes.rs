//! The parameters of lanes, and those that all lanes share.

use autograd::Weight;
use autograd::ops::LaneShare;
use collective::Axis;
use tensor::Shape;

use super::Parameters;
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::lanes::Lanes;

impl Parameters {
    /// The lanes of layers.
    pub fn lanes(&self) -> Lanes {
        self.lanes
    }

    /// Calls `make` for each lane that is here; the parameters that it makes belong to the lane.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn for_each_lane<T>(&mut self, mut make: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut all = Vec::with_capacity(self.lanes.here);
        for lane in 0..self.lanes.here {
            self.lane = self.lanes.is_divided().then_some(lane);
            let made = make(self);
            self.lane = None;
            all.push(made?);
        }
        Ok(all)
    }

    /// The number among all lanes of the lane whose parameters are made now; `None` outside
    /// [`Parameters::for_each_lane`], and if layers are not divided.
    pub(crate) fn lane(&self) -> Option<usize> {
        let lane = self.lane?;
        Some(self.grid.map_or(lane, |grid| self.lanes.coordinate(&grid, lane, Axis::Tensor)))
    }

    /// Makes a parameter of all lanes with one use, or returns the one that the first lane has made, with the
    /// share in its gradient of the lane whose parameters are made now. Layers are divided.
    ///
    /// # Errors
    /// As for [`Parameters::create`].
    pub(crate) fn create_for_all_lanes(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        init: Init,
    ) -> Result<(Weight, LaneShare)> {
        let lane = self.lane.take();
        let made = match self.of_all_lanes.get(name) {
            Some(_) => Ok(()),
            None => self.create(name, shape, init).map(|weight| {
                let shares = LaneShare::of_lanes(self.lanes.here);
                self.of_all_lanes.insert(name.to_owned(), (weight, shares));
            }),
        };
        self.lane = lane;
        made?;
        let found = self.of_all_lanes.get(name);
        let share = |shares: &[LaneShare]| shares.get(lane.unwrap_or(0)).cloned();
        let found = found.and_then(|(weight, shares)| Some((weight.clone(), share(shares)?)));
        found.ok_or_else(|| NnError::Parameter { name: name.to_owned(), problem: "used before it is made" })
    }

    /// Returns `weight` for an operator on rows, which are divided between layers if layers are.
    pub(crate) fn over_rows(&self, weight: Weight) -> Weight {
        if self.lanes.is_divided() { weight.over_row_lanes(self.lanes.here) } else { weight }
    }

    /// Index along `axis` of the parts in this list that belong to lane `lane` of those that are here.
    pub fn coordinate(&self, axis: Axis, lane: usize) -> usize {
        match &self.grid {
            Some(grid) => self.lanes.coordinate(grid, lane, axis),
            None if axis == Axis::Tensor => lane,
            None => 0,
        }
    }
}
