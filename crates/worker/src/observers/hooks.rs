//! User code around the model, and user code that sees every step.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use device::{Device, ModuleObserver};
use memory::Statistics;
use nn::Model;

type Wrap = dyn Fn(Box<dyn Model>) -> Box<dyn Model> + Send + Sync;

/// A function that every rank applies to its stage of the model before training, to observe or change the
/// values in it. The plan applies it too, so that its memory is planned.
#[derive(Clone)]
pub struct ModelHook(Arc<Wrap>);

impl ModelHook {
    /// Returns a hook that trains the result of `wrap` instead of the model. Both must have the same
    /// parameters; the returned model may have its own buffers.
    pub fn new(wrap: impl Fn(Box<dyn Model>) -> Box<dyn Model> + Send + Sync + 'static) -> Self {
        ModelHook(Arc::new(wrap))
    }

    /// Returns `model` with a hook's code around it, if there is a hook.
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

/// A moment of a training step, as the host enqueues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment<'a> {
    /// Before the forward pass of a micro-batch through a stage; its inputs are on the device.
    BeforeForward,
    /// After it, with the loss on the last stage.
    AfterForward,
    /// Before the backward pass of a micro-batch through a stage, or half of it.
    BeforeBackward,
    /// After it.
    AfterBackward,
    /// Before the norm of the gradients, clipping and the update.
    BeforeUpdate,
    /// After the update.
    AfterUpdate,
    /// Before a module with this path, such as `h.3.mlp`, in either pass.
    BeforeModule(&'a str),
    /// After it.
    AfterModule(&'a str),
    /// The gradient of the parameter with this name has been enqueued for a micro-batch.
    Gradient(&'a str),
}

/// A moment of a step on one rank, with the allocator's counters.
#[derive(Clone, Copy, Debug)]
pub struct StepMoment<'a> {
    /// The moment.
    pub moment: Moment<'a>,
    /// The rank.
    pub rank: usize,
    /// The step, from 1.
    pub step: u64,
    /// Pipeline stage and micro-batch by its index among the rank's, of the passes; `None` in an update.
    pub pass: Option<(usize, usize)>,
    /// Counters of the rank's allocator.
    pub counters: &'a Statistics,
}

type Hear = dyn Fn(&StepMoment<'_>) + Send + Sync;

/// A function that every rank calls at each [`Moment`] of its training steps. It runs on the rank's thread
/// and delays it; it changes nothing of the run.
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

/// Calls a rank's hook, if it has one.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    hook: Option<StepHook>,
    device: Device,
    pass: Rc<Cell<Option<(usize, usize)>>>,
    /// Whether a training step is being enqueued.
    is_training: Rc<Cell<bool>>,
}

impl Moments {
    /// Returns the caller of `hook`, which from now on also hears of the device's modules.
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

    /// Begins or ends a training step.
    pub(crate) fn train(&self, is_training: bool) {
        self.is_training.set(is_training);
        self.pass.set(None);
    }

    /// Calls the hook in a step, for the pass of `pass` if it is set.
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
