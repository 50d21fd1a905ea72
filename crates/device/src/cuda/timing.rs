//! Timed calls, and the profile that collects them.

use std::cell::RefCell;
use std::rc::Rc;

use cudarc::driver::sys;

use super::error::Result;
use super::gates::Gates;
use super::streams::{EventPool, Point};
use crate::work::Work;

/// Calls timed since the profile began.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(super) pool: Rc<EventPool>,
    pub(super) start: Result<Point>,
    pub(super) calls: RefCell<Vec<Call>>,
    /// Gates in front of groups of calls; `None` if the profile is not recorded ahead.
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

/// A call that is being timed; empty if no profile is recorded.
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
    /// Starts timing a call, if a profile is being recorded.
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
