//! Timed calls, and the profile that keeps them.

use std::cell::RefCell;
use std::rc::Rc;

use cudarc::driver::sys;

use super::error::Result;
use super::gates::Gates;
use super::streams::{EventPool, Point};
use crate::work::Work;

/// Calls since the profile was begun.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(super) pool: Rc<EventPool>,
    pub(super) start: Result<Point>,
    pub(super) calls: RefCell<Vec<Call>>,
    /// Gates that let the host enqueue calls ahead of the device, if it is to.
    pub(super) gates: Option<Gates>,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) stream: sys::CUstream,
    pub(super) begin: Point,
    pub(super) end: Point,
    pub(super) family: &'static str,
    pub(super) name: String,
    pub(super) work: Work,
}

/// A call being timed, if a profile is being taken.
pub(crate) struct Timed {
    running: Option<Running>,
    stream: sys::CUstream,
}

struct Running {
    profile: Rc<Profile>,
    begin: Result<Point>,
    family: &'static str,
    name: String,
    work: Work,
}

impl Timed {
    /// Starts timing a call, if a profile is being taken.
    pub(super) fn begin(
        profile: Option<Rc<Profile>>,
        stream: sys::CUstream,
        family: &'static str,
        name: impl FnOnce() -> String,
        work: Work,
    ) -> Self {
        let running = profile.map(|profile| {
            let gate = profile.gates.as_ref().map_or(Ok(()), |gates| gates.before_call(stream));
            let begin = gate.and_then(|()| profile.pool.record(stream));
            Running { profile, begin, family, name: name(), work }
        });
        Timed { running, stream }
    }

    pub(crate) fn finish(self) -> Result<()> {
        let Some(Running { profile, begin, family, name, work }) = self.running else { return Ok(()) };
        let end = profile.pool.record(self.stream)?;
        let stream = self.stream;
        profile.calls.borrow_mut().push(Call { stream, begin: begin?, end, family, name, work });
        Ok(())
    }
}
