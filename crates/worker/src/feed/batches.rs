//! Micro-batches on the host, as a pass over the schedule reads them.

use std::cell::RefCell;
use std::rc::Rc;

use collective::GridGroups;
use data::{MicroBatch, MicroBatchId, Prefetcher};

use super::numbers::Numbers;
use crate::error::{Result, WorkerError};
use crate::setup::Setup;

/// Returns the reader of a rank's micro-batches. While it waits for data, the rank's watchdog is paused.
pub(crate) fn prefetcher(setup: &Setup, groups: &mut GridGroups) -> Prefetcher {
    let watch = groups.control().watch();
    Prefetcher::new(setup.source(), setup.config.data.prefetch).while_waiting(move || watch.delay())
}

/// The micro-batches of the current pass over the schedule. Clones share them. Host work of a captured step
/// reads the micro-batches of the step in which it is replayed.
#[derive(Clone, Debug, Default)]
pub(crate) struct MicroBatches(Rc<RefCell<Option<SchedulePass>>>);

/// State of one pass over the schedule.
#[derive(Debug)]
struct SchedulePass {
    data: Prefetcher,
    numbers: Numbers,
    /// Indices of the micro-batches to load, in order ([`Executor::data_order`]).
    ///
    /// [`Executor::data_order`]: parallel::pipeline::Executor::data_order
    order: Rc<[usize]>,
    /// Number of micro-batches loaded so far.
    loaded: usize,
    /// In a replay, the index of the current micro-batch minus that of the captured one; otherwise 0.
    shift: usize,
}

impl MicroBatches {
    /// Begins a pass over the schedule. `data` reads the micro-batches; `order` lists the indices to load.
    pub(crate) fn begin(&self, data: Prefetcher, numbers: Numbers, order: &Rc<[usize]>) {
        *self.0.borrow_mut() =
            Some(SchedulePass { data, numbers, order: Rc::clone(order), loaded: 0, shift: 0 });
    }

    /// Begins the next pass, whose micro-batch numbers continue after the last pass.
    pub(crate) fn follow(&self, numbers: Numbers) {
        if let Some(pass) = &mut *self.0.borrow_mut() {
            (pass.numbers, pass.loaded, pass.shift) = (numbers, 0, 0);
        }
    }

    /// Stops reading micro-batches.
    pub(crate) fn end(&self) {
        *self.0.borrow_mut() = None;
    }

    /// Makes the host work that was captured for micro-batch `captured` read `micro_batch` instead.
    pub(crate) fn replace(&self, captured: usize, micro_batch: usize) {
        if let Some(pass) = &mut *self.0.borrow_mut() {
            pass.shift = micro_batch.wrapping_sub(captured);
        }
    }

    /// Returns the numbers of the current micro-batches.
    ///
    /// # Errors
    /// No pass has begun.
    pub(crate) fn numbers(&self) -> Result<Numbers> {
        self.0.borrow().as_ref().map(|pass| pass.numbers.clone()).ok_or_else(no_pass)
    }

    /// Returns the identifier of a micro-batch.
    ///
    /// # Errors
    /// No pass has begun.
    pub(crate) fn id(&self, micro_batch: usize) -> Result<MicroBatchId> {
        let pass = self.0.borrow();
        let SchedulePass { numbers, shift, .. } = pass.as_ref().ok_or_else(no_pass)?;
        Ok(numbers.id(micro_batch.wrapping_add(*shift)))
    }

    /// Passes a micro-batch, which was read ahead, to `read`.
    ///
    /// # Errors
    /// Data cannot be read, or `read` fails.
    pub(crate) fn read<T>(
        &self,
        micro_batch: usize,
        read: impl FnOnce(&MicroBatch) -> Result<T>,
    ) -> Result<T> {
        let mut pass = self.0.borrow_mut();
        let SchedulePass { data, numbers, order, loaded, shift } = pass.as_mut().ok_or_else(no_pass)?;
        let id: MicroBatchId = numbers.id(micro_batch.wrapping_add(*shift));
        if !data.holds(id) {
            *loaded += 1;
        }
        read(data.get(id, numbers.following(order, *loaded))?)
    }
}

fn no_pass() -> WorkerError {
    WorkerError::Refused("a micro-batch is read before a pass over the schedule begins".to_owned())
}
