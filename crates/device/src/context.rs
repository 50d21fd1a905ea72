//! Labels of memory requests: category, module, operator and step.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use memory::{Category, Label, Statistics};

use crate::stream::StreamKind;

/// Labels and stream of an operator's memory request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Purpose of the memory.
    pub category: Category,
    /// Name of the requesting operator.
    pub operator: &'static str,
    /// Stream that will use the memory.
    pub stream: StreamKind,
}

impl Request {
    /// Returns a request on the compute stream.
    pub const fn new(category: Category, operator: &'static str) -> Self {
        Request { category, operator, stream: StreamKind::Compute }
    }

    /// Returns the same request on another stream.
    pub const fn on(self, stream: StreamKind) -> Self {
        Request { stream, ..self }
    }
}

/// The current module and step, with which allocations are labelled.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) module: Cell<Label>,
    pub(crate) step: Cell<u32>,
    pub(crate) observer: RefCell<Option<ModuleObserver>>,
}

/// Notice that the host enters or leaves a module.
#[derive(Clone, Copy, Debug)]
pub struct ModuleEvent<'a> {
    /// Path of the module.
    pub path: &'a str,
    /// Whether the host enters the module; otherwise it leaves it.
    pub enters: bool,
    /// The device's rank.
    pub rank: usize,
    /// The current step.
    pub step: u32,
    /// Counters of the device's allocator.
    pub counters: &'a Statistics,
}

/// A callback for whenever the host enters or leaves a module.
#[derive(Clone)]
pub struct ModuleObserver(Rc<dyn Fn(&ModuleEvent<'_>)>);

impl ModuleObserver {
    /// Creates an observer from a callback, which must not allocate device memory.
    pub fn new(hear: impl Fn(&ModuleEvent<'_>) + 'static) -> Self {
        ModuleObserver(Rc::new(hear))
    }

    pub(crate) fn hear(&self, event: &ModuleEvent<'_>) {
        (self.0)(event);
    }
}

impl fmt::Debug for ModuleObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModuleObserver")
    }
}
