//! User code that wraps the model, and user code called at moments of every step.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use device::{Device, ModuleObserver};
use memory::Statistics;
use nn::Model;

type Wrap = dyn Fn(Box<dyn Model>) -> Box<dyn Model> + Send + Sync;

/// A function that wraps each rank's stage of the model before training, to observe or change values. The
/// plan applies it too, so that its memory is planned.
#[derive(Clone)]
pub struct ModelHook(Arc<Wrap>);

impl ModelHook {
    /// Returns a hook that trains the result of `wrap` instead of the model. Both must have the same
    /// parameters; the returned model may have its own buffers.
    pub fn new(wrap: impl Fn(Box<dyn Model>) -> Box<dyn Model> + Send + Sync + 'static) -> Self {
        ModelHook(Arc::new(wrap))
    }

    /// Wraps `model` with the hook; without one, returns it unchanged.
    pub(crate) fn around(hook: Option<&Self>, model: Box<dyn Model>) -> Box<dyn Model> {
        match hook {
            Some(hook) => (hook.0)(model),
            None => model,
        }
    }
}

impl fmt::Debug for ModelHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelHook")
    }
}

/// A moment of a training step, in the order in which the host enqueues work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment<'a> {
    /// Before the forward pass of a micro-batch through a stage, with its inputs on the device.
    BeforeForward,
    /// After the forward pass, with the loss on the last stage.
    AfterForward,
    /// Before the backward pass, or half of it, of a micro-batch through a stage.
    BeforeBackward,
    /// After the backward pass or its half.
    AfterBackward,
    /// Before the gradient norm, clipping and the update.
    BeforeUpdate,
    /// After the update.
    AfterUpdate,
    /// Before the module with this path, such as `h.3.mlp`, in a forward or backward pass.
    BeforeModule(&'a str),
    /// After the module with this path.
    AfterModule(&'a str),
    /// The gradient of the parameter with this name has been enqueued for a micro-batch.
    Gradient(&'a str),
}

/// A moment of a step on one rank, with the allocator's statistics.
#[derive(Clone, Copy, Debug)]
pub struct StepMoment<'a> {
    /// The moment.
    pub moment: Moment<'a>,
    /// The rank.
    pub rank: usize,
    /// The step, from 1.
    pub step: u64,
    /// (pipeline stage, index of the micro-batch among this rank's); `None` during the update.
    pub pass: Option<(usize, usize)>,
    /// Statistics of the rank's allocator.
    pub counters: &'a Statistics,
}

type Hear = dyn Fn(&StepMoment<'_>) + Send + Sync;

/// A function called at each [`Moment`] of a rank's training steps. It runs on the rank's thread and delays
/// it, but cannot change results.
#[derive(Clone)]
pub struct StepHook(Arc<Hear>);

impl StepHook {
    /// Creates a hook from a function.
    pub fn new(hear: impl Fn(&StepMoment<'_>) + Send + Sync + 'static) -> Self {
        StepHook(Arc::new(hear))
    }
}

impl fmt::Debug for StepHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepHook")
    }
}

/// Calls a rank's step hook, if it has one.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    hook: Option<StepHook>,
    device: Device,
    pass: Rc<Cell<Option<(usize, usize)>>>,
    /// Whether a training step is being enqueued.
    is_training: Rc<Cell<bool>>,
}

impl Moments {
    /// Returns the caller of `hook`, which is also called for the device's modules from now on.
    pub(crate) fn new(hook: Option<StepHook>, device: &Device) -> Self {
        let hook = hook.filter(|_| !device.is_meta());
        let moments =
            Moments { hook, device: device.clone(), pass: Rc::default(), is_training: Rc::default() };
        if moments.hook.is_some() {
            device.observe_modules(Some(moments.of_modules()));
        }
        moments
    }

    fn of_modules(&self) -> ModuleObserver {
        let (hook, pass, is_training) =
            (self.hook.clone(), Rc::clone(&self.pass), Rc::clone(&self.is_training));
        ModuleObserver::new(move |event| {
            if let Some(StepHook(hear)) =
                hook.as_ref().filter(|_| is_training.get() && !event.path.is_empty())
            {
                let is = if event.enters { Moment::BeforeModule } else { Moment::AfterModule };
                let rank = event.rank;
                let step = event.step.into();
                let counters = event.counters;
                hear(&StepMoment { moment: is(event.path), rank, step, pass: pass.get(), counters });
            }
        })
    }

    /// Marks the beginning or the end of a training step.
    pub(crate) fn train(&self, is_training: bool) {
        self.is_training.set(is_training);
        self.pass.set(None);
    }

    /// Calls the hook, if within a training step. `pass` is the stage and micro-batch.
    pub(crate) fn at(&self, moment: Moment<'_>, pass: Option<(usize, usize)>) {
        if self.is_training.get() {
            self.pass.set(pass);
            if let Some(StepHook(hear)) = &self.hook {
                let device = &self.device;
                let rank = device.rank();
                let step = device.step().into();
                let counters = device.statistics();
                hear(&StepMoment { moment, rank, step, pass, counters: &counters });
            }
        }
    }

    /// Returns whether there is a hook.
    pub(crate) fn has_hook(&self) -> bool {
        self.hook.is_some()
    }
}
