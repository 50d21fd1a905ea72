//! Times and memory of the phases of a step. Times come from marks in the device's work that are read after
//! the step, so nothing waits.

mod phase_memory;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use device::nvtx::Range;
use device::{Device, LoggedCall, Mark, StreamKind};
use memory::Usage;
use telemetry::step_trace::{MICRO_BATCH, STAGE};
use telemetry::{Phase, PhaseCounter, PhaseTimes, RankStep};

use crate::error::Result;
use crate::graphs::Recorder;
use crate::observers::operator_timer::OperatorTimer;
use crate::phases::phase_memory::PhaseMemory;

/// An enqueued step: the phases entered with their start marks, and the end mark.
type Enqueued = (Vec<(Phase, Mark)>, Mark);

/// Times the phases of a worker's steps. The calls: [`Phases::begin`], [`Phases::enter`] for each phase in
/// turn, [`Phases::end`]. Nothing is timed on Meta. The first step, which warms up, is included only while it
/// is the only one. Clones share the times.
#[derive(Clone, Debug)]
pub struct Phases {
    device: Device,
    recorder: Recorder,
    state: Rc<RefCell<State>>,
}

#[derive(Debug)]
struct State {
    device: Device,
    /// The phase being enqueued.
    now: Option<Phase>,
    /// The step being enqueued: each phase entered with its start mark.
    current: Vec<(Phase, Mark)>,
    /// Enqueued steps whose times have not been read.
    unread: VecDeque<Enqueued>,
    /// All steps read since [`Phases::keep`]; `None` before.
    history: Option<Vec<Enqueued>>,
    first: Option<PhaseCounter>,
    counter: PhaseCounter,
    /// The operator timer, which also times each phase outside operators; `None` if operators are not timed.
    timer: Option<OperatorTimer>,
    /// The phase as a range for an attached profiler. It may begin inside an operator.
    range: Option<Range>,
    /// Number of steps read since the last record, and the total time of each phase.
    recent: (u32, [Duration; Phase::ALL.len()]),
    memory: PhaseMemory,
}

impl Phases {
    /// Returns a timer of a rank's steps. `recorder` captures the steps.
    pub(crate) fn new(device: &Device, recorder: &Recorder) -> Self {
        let state = Rc::new(RefCell::new(State::new(device)));
        Phases { device: device.clone(), recorder: recorder.clone(), state }
    }

    /// Sets or removes the operator timer, which is called at every phase.
    pub(crate) fn set_timer(&self, timer: Option<OperatorTimer>) {
        self.state.borrow_mut().timer = timer;
    }

    /// Returns whether operators are timed.
    pub(crate) fn has_timer(&self) -> bool {
        self.state.borrow().timer.is_some()
    }

    /// Begins a step, in the phase of its inputs. Discards an unfinished step, and marks made between steps.
    pub fn begin(&self) -> Result<()> {
        self.state.borrow_mut().begin()?;
        self.enter(Phase::Inputs)
    }

    /// Enters `phase` and marks it in the allocator's history. A step may enter a phase several times.
    pub fn enter(&self, phase: Phase) -> Result<()> {
        if self.state.borrow().now == Some(phase) {
            return Ok(());
        }
        // A replay repeats the mark with the allocations.
        self.device.with_allocator(|allocator| allocator.mark(phase.name(), 0));
        let state = Rc::clone(&self.state);
        self.recorder.host(move || state.borrow_mut().enter(phase))
    }

    /// Enters the phase of a pass. Logs its beginning even if the previous pass was in the same phase.
    pub fn enter_pass(&self, phase: Phase) -> Result<()> {
        if self.state.borrow().now == Some(phase) {
            self.device.log(|| LoggedCall::Section(phase.name()));
        }
        self.enter(phase)
    }

    /// Marks the beginning of a stage in the allocator's history. Before the first call, it is the first
    /// stage.
    pub fn stage(&self, stage: usize) {
        self.device.with_allocator(|allocator| allocator.mark(STAGE, stage as u64));
    }

    /// Marks the beginning of a micro-batch in the allocator's history. `number` is its index among the
    /// rank's in the step.
    pub fn micro_batch(&self, number: usize) {
        self.device.with_allocator(|allocator| allocator.mark(MICRO_BATCH, number as u64));
    }

    /// Ends the step being enqueued.
    pub fn end(&self) -> Result<()> {
        self.state.borrow_mut().end()
    }

    /// Begins to measure the memory of a validation.
    pub(crate) fn begin_validation(&self) {
        self.state.borrow_mut().memory.begin_validation();
    }

    /// Ends the measurement of a validation's memory.
    pub(crate) fn end_validation(&self) {
        self.state.borrow_mut().memory.end_validation();
    }

    /// Returns the peaks of allocated and reserved bytes in the last step.
    pub(crate) fn last_peak(&self) -> Usage {
        self.state.borrow().memory.last_peak()
    }

    /// Returns the record of the steps since the last call. Its times are those of steps that the device has
    /// finished.
    pub(crate) fn record(&self) -> Result<RankStep> {
        self.state.borrow_mut().record()
    }

    /// Discards all times; measurement starts over with the next step.
    pub fn restart(&self) {
        let fresh = State { first: Some(PhaseCounter::default()), ..State::new(&self.device) };
        self.state.replace(fresh);
    }

    /// Returns the times of the steps so far. Waits for the device.
    pub fn times(&self) -> Result<PhaseTimes> {
        self.state.borrow_mut().times()
    }

    /// Keeps the times of every phase from now on, for [`Phases::spans`]. Waits for the device.
    pub fn keep(&self) -> Result<()> {
        let mut state = self.state.borrow_mut();
        state.read_all()?;
        state.history = Some(Vec::new());
        Ok(())
    }

    /// Returns the start and end of every phase since [`Phases::keep`], relative to `zero`. Waits for the
    /// device.
    pub fn spans(&self, zero: &Mark) -> Result<Vec<(Phase, Duration, Duration)>> {
        let mut state = self.state.borrow_mut();
        state.read_all()?;
        let mut spans = Vec::new();
        for (marks, end) in state.history.take().unwrap_or_default() {
            let ends = marks.iter().skip(1).map(|(_, mark)| mark).chain([&end]);
            for ((phase, mark), end) in marks.iter().zip(ends) {
                if let (Some(begin), Some(end)) = (zero.until(mark)?, zero.until(end)?) {
                    spans.push((*phase, begin, end));
                }
            }
        }
        Ok(spans)
    }
}

impl State {
    fn new(device: &Device) -> Self {
        State {
            device: device.clone(),
            now: None,
            current: Vec::new(),
            unread: VecDeque::new(),
            history: None,
            first: None,
            counter: PhaseCounter::default(),
            timer: None,
            range: None,
            recent: Default::default(),
            memory: PhaseMemory::new(device),
        }
    }

    fn begin(&mut self) -> Result<()> {
        self.current.clear();
        self.now = None;
        self.device.take_waits();
        self.read()?;
        self.memory.begin();
        Ok(())
    }

    /// Enters a phase other than the current one.
    fn enter(&mut self, phase: Phase) -> Result<()> {
        self.note_waits();
        self.now = Some(phase);
        // The last phase's range ends before the next begins.
        self.range = None;
        self.range = Range::start(phase.name());
        self.memory.enter(phase);
        self.device.log(|| LoggedCall::Section(phase.name()));
        if !self.device.is_meta() {
            self.current.push((phase, self.device.mark()?));
        }
        if let Some(timer) = &self.timer {
            timer.phase(Some(phase))?;
        }
        Ok(())
    }

    /// Splits the current phase where compute waited for weights being gathered or for exchanges within
    /// layers. A wait for inputs stays part of the input phase.
    fn note_waits(&mut self) {
        let Some(now) = self.now.filter(|_| !self.device.is_meta()) else { return };
        let waits = self.device.take_waits();
        if now == Phase::Inputs {
            return;
        }
        for (stream, before, after) in waits {
            let phase = if stream == StreamKind::Exchange { Phase::Exchange } else { Phase::Reduce };
            self.current.extend([(phase, before), (now, after)]);
        }
    }

    fn end(&mut self) -> Result<()> {
        self.note_waits();
        self.now = None;
        self.range = None;
        self.memory.end();
        if !self.current.is_empty() {
            let end = self.device.mark()?;
            self.unread.push_back((std::mem::take(&mut self.current), end));
        }
        if let Some(timer) = &self.timer {
            timer.phase(None)?;
        }
        Ok(())
    }

    fn record(&mut self) -> Result<RankStep> {
        self.read()?;
        let mut record = self.memory.take();
        let (steps, times) = std::mem::take(&mut self.recent);
        for (phase, time) in Phase::ALL.into_iter().zip(times) {
            if let Some(figures) = record.phases.get_mut(phase.name()).filter(|_| steps > 0) {
                figures.microseconds = u64::try_from((time / steps).as_micros()).ok();
            }
        }
        Ok(record)
    }

    fn times(&mut self) -> Result<PhaseTimes> {
        if !self.unread.is_empty() {
            self.read_all()?;
        }
        let counted = self.counter.times();
        Ok(match &self.first {
            Some(first) if counted.steps == 0 => first.times(),
            _ => counted,
        })
    }

    /// Reads the times of all steps. Waits for the device.
    fn read_all(&mut self) -> Result<()> {
        self.device.synchronize()?;
        self.read()
    }

    /// Reads the times of the steps that have finished, in order.
    fn read(&mut self) -> Result<()> {
        while let Some((marks, end)) = self.unread.front() {
            let Some(step) = times(marks, end)? else { return Ok(()) };
            if let (Some(over), Some(history)) = (self.unread.pop_front(), &mut self.history) {
                history.push(over);
            }
            self.recent.0 += 1;
            self.recent.1.iter_mut().zip(step).for_each(|(sum, time)| *sum += time);
            match self.first {
                None => self.first.insert(PhaseCounter::default()).add(step),
                Some(_) => self.counter.add(step),
            }
        }
        Ok(())
    }
}

/// Returns the time a step spent in each phase; `None` if it has not finished.
fn times(marks: &[(Phase, Mark)], end: &Mark) -> Result<Option<[Duration; Phase::ALL.len()]>> {
    let mut times = [Duration::ZERO; Phase::ALL.len()];
    // The last part is read first: if it has ended, all have.
    let mut later = end;
    for (phase, mark) in marks.iter().rev() {
        let Some(time) = mark.until(later)? else { return Ok(None) };
        times[phase.index()] += time;
        later = mark;
    }
    Ok(Some(times))
}

#[cfg(test)]
mod tests {
    use device::{Description, DeviceOptions};

    use super::*;

    fn of_device(device: &Device) -> Phases {
        Phases::new(device, &Recorder::new(device))
    }

    fn step(phases: &Phases, milliseconds: [u64; 4]) {
        phases.begin().unwrap();
        for (phase, time) in
            [Phase::Forward, Phase::Backward, Phase::Forward, Phase::Update].into_iter().zip(milliseconds)
        {
            phases.enter(phase).unwrap();
            std::thread::sleep(Duration::from_millis(time));
        }
        phases.end().unwrap();
    }

    #[test]
    fn a_phase_is_timed_each_time_it_is_entered() {
        let phases = of_device(&Device::cpu(0, &DeviceOptions::default()).unwrap());
        assert_eq!(phases.times().unwrap(), PhaseTimes::default());
        step(&phases, [90, 0, 0, 0]);
        // The first step counts while there is no other.
        let first = phases.times().unwrap();
        assert_eq!((first.steps, first.median[Phase::Forward.index()] / 1000 >= 90), (1, true));
        step(&phases, [2, 4, 3, 1]);
        // A step that fails leaves nothing behind.
        phases.begin().unwrap();
        phases.enter(Phase::Backward).unwrap();
        step(&phases, [2, 4, 3, 1]);
        // The failed step is not part of the following times.
        let times = phases.times().unwrap();
        assert_eq!(times.steps, 2);
        let at_least = [0, 5000, 4000, 0, 0, 0, 1000];
        for ((phase, median), least) in Phase::ALL.into_iter().zip(times.median).zip(at_least) {
            // Sleep may be longer than requested, on a busy machine by much.
            assert!((least..least + 60_000).contains(&median), "{phase:?}: {times:?}");
        }
        // The median of two steps is the longer one, which is no longer than the sum of its longest phases.
        assert!((10_000..=times.median.iter().sum::<u64>() + 5).contains(&times.median_step), "{times:?}");
        phases.restart();
        step(&phases, [1, 1, 1, 1]);
        assert_eq!(phases.times().unwrap().steps, 1);
    }

    #[test]
    fn a_phase_is_interrupted_while_compute_waits_for_weights() {
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let phases = of_device(&device);
        let comes = || device.arrival(StreamKind::Reduce).unwrap();
        let arrivals = [comes(), comes(), comes()];
        // Waits between steps interrupt no phase.
        device.await_arrival(&arrivals[0]);
        phases.keep().unwrap();
        let zero = device.mark().unwrap();
        for _ in 0..2 {
            phases.begin().unwrap();
            // A wait for inputs is no other phase.
            device.await_arrival(&comes());
            phases.enter(Phase::Forward).unwrap();
            // Each wait counts once.
            arrivals.iter().for_each(|arrival| device.await_arrival(arrival));
            phases.enter(Phase::Update).unwrap();
            phases.end().unwrap();
        }
        let spans = phases.spans(&zero).unwrap();
        let names: Vec<_> = spans.iter().map(|(phase, ..)| *phase).collect();
        let forward = Phase::Forward;
        let reduce = Phase::Reduce;
        let first = [Phase::Inputs, forward, reduce, forward, reduce, forward, Phase::Update];
        assert_eq!(names, [&first[..], &[Phase::Inputs, forward, Phase::Update]].concat());
        assert!(spans.windows(2).all(|pair| pair[0].2 <= pair[1].1), "{spans:?}");
        assert!(phases.spans(&zero).unwrap().is_empty());
    }

    #[test]
    fn nothing_is_timed_on_meta() {
        let meta = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap();
        let phases = of_device(&meta);
        step(&phases, [1, 1, 1, 1]);
        step(&phases, [1, 1, 1, 1]);
        assert_eq!(phases.times().unwrap(), PhaseTimes::default());
    }
}
