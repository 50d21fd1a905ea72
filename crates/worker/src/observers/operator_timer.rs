//! Measures time, bytes and FLOPs of operators, by marks around each call.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use autograd::{Call, Observer, ObserverError};
use device::{Device, Label, Mark};
use telemetry::Phase;
use telemetry::operators::OperatorSpan;
use tensor::Tensor;

use crate::error::Result;

/// A point in a step at which times and memory are measured.
#[derive(Debug)]
struct Point {
    kind: Kind,
    mark: Mark,
    host: Instant,
    /// Total bytes of all allocations so far.
    allocated: u64,
    /// Bytes currently allocated.
    in_use: u64,
    /// Bytes currently reserved from the driver.
    reserved: u64,
    flops: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Begin(Call),
    End,
    /// A phase begins; `None` at the end of a step.
    Phase(Option<Phase>),
}

/// (time in microseconds, [allocated bytes, reserved bytes]).
pub type MemoryPoint = (f64, [u64; 2]);

/// Measures every operator of a worker's steps. Each moment of a step belongs to exactly one span: the
/// innermost call, or the phase outside all calls. So the spans' exclusive times add up to the steps.
#[derive(Clone, Debug)]
pub struct OperatorTimer(Rc<State>);

#[derive(Debug)]
struct State {
    device: Device,
    points: RefCell<Vec<Point>>,
}

impl OperatorTimer {
    pub(crate) fn new(device: &Device) -> Self {
        OperatorTimer(Rc::new(State { device: device.clone(), points: RefCell::default() }))
    }

    /// Marks the beginning of a phase, or with `None` the end of a step.
    pub(crate) fn phase(&self, phase: Option<Phase>) -> Result<()> {
        Ok(self.point(Kind::Phase(phase))?)
    }

    fn point(&self, kind: Kind) -> device::Result<()> {
        let State { device, points } = &*self.0;
        let mark = device.mark()?;
        let [allocated, in_use, reserved] = device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            [statistics.allocated_in_total(), statistics.allocated(), statistics.reserved()]
        });
        let host = Instant::now();
        let flops = device.flops();
        points.borrow_mut().push(Point { kind, mark, host, allocated, in_use, reserved, flops });
        Ok(())
    }

    /// Returns the spans of all steps since the last call, in order, and the memory at their ends. Times are
    /// relative to `zero`. Waits for the device.
    pub fn take(&self, zero: &Mark) -> Result<(Vec<OperatorSpan>, Vec<MemoryPoint>)> {
        self.0.device.synchronize()?;
        let points = self.0.points.take();
        let mut builder = SpanBuilder { timer: self, zero, spans: Vec::new(), open: Vec::new(), phase: None };
        for (index, point) in points.iter().enumerate() {
            builder.enter(point)?;
            if let Some(next) = points.get(index + 1) {
                builder.pass(point, next)?;
            }
        }
        let spans = builder.spans;
        let memory = |point: &Point| Ok((microseconds(zero, &point.mark)?, [point.in_use, point.reserved]));
        Ok((spans, points.iter().map(memory).collect::<Result<_>>()?))
    }

    fn module(&self, label: Label) -> String {
        self.0.device.with_allocator(|allocator| allocator.labels().name(label).to_owned())
    }
}

impl Observer for OperatorTimer {
    fn before(&self, call: &Call) -> std::result::Result<(), ObserverError> {
        Ok(self.point(Kind::Begin(*call))?)
    }

    fn after(&self, _: &Call, _: &[Option<&Tensor>]) -> std::result::Result<(), ObserverError> {
        Ok(self.point(Kind::End)?)
    }
}

/// Builds spans from measured points.
struct SpanBuilder<'a> {
    timer: &'a OperatorTimer,
    zero: &'a Mark,
    spans: Vec<OperatorSpan>,
    /// Indices of the spans of calls that have not ended, outermost first.
    open: Vec<usize>,
    phase: Option<Phase>,
}

impl SpanBuilder<'_> {
    /// Begins or ends the span of a call or a phase.
    fn enter(&mut self, point: &Point) -> Result<()> {
        match point.kind {
            Kind::Begin(call) => {
                let name = call.operator.to_owned();
                let pass = call.direction.name();
                let module = self.timer.module(call.module);
                self.open.push(self.spans.len());
                let span = OperatorSpan {
                    module,
                    operator: name,
                    pass: pass.to_owned(),
                    is_call: true,
                    ..self.at(point)?
                };
                self.spans.push(span);
            }
            Kind::End => {
                if let Some(span) = self.open.pop().and_then(|index| self.spans.get_mut(index)) {
                    span.end = microseconds(self.zero, &point.mark)?;
                }
            }
            Kind::Phase(phase) => self.phase = phase,
        }
        Ok(())
    }

    /// Adds the time and memory between two points to the innermost call, or else to the phase.
    fn pass(&mut self, point: &Point, next: &Point) -> Result<()> {
        let own = point.mark.until(&next.mark)?.unwrap_or_default();
        let index = match (self.open.last(), self.phase) {
            (Some(index), _) => *index,
            (None, Some(phase)) => {
                let operator = format!("({})", phase.name());
                let end = microseconds(self.zero, &next.mark)?;
                let span = OperatorSpan { operator, pass: phase.name().to_owned(), end, ..self.at(point)? };
                self.spans.push(span);
                self.spans.len() - 1
            }
            (None, None) => return Ok(()),
        };
        let Some(span) = self.spans.get_mut(index) else { return Ok(()) };
        span.device_microseconds += in_microseconds(own);
        span.host_microseconds += in_microseconds(next.host.duration_since(point.host));
        span.allocated += next.allocated - point.allocated;
        span.kept += next.in_use.cast_signed() - point.in_use.cast_signed();
        span.flops += next.flops - point.flops;
        Ok(())
    }

    /// Returns an empty span that begins at `point`.
    fn at(&self, point: &Point) -> Result<OperatorSpan> {
        let begin = microseconds(self.zero, &point.mark)?;
        Ok(OperatorSpan { begin, end: begin, ..OperatorSpan::default() })
    }
}

fn microseconds(zero: &Mark, mark: &Mark) -> Result<f64> {
    Ok(in_microseconds(zero.until(mark)?.unwrap_or_default()))
}

fn in_microseconds(time: Duration) -> f64 {
    1e6 * time.as_secs_f64()
}
