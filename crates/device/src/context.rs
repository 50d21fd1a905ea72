//! The context of a request for memory: category, module, operator and step.

use std::cell::Cell;

use memory::{Category, Label};

use crate::{Device, StreamKind};

/// An operator's description of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Purpose of the bytes.
    pub category: Category,
    /// The operator that asks.
    pub operator: &'static str,
    /// The stream that the bytes will be used on.
    pub stream: StreamKind,
}

impl Request {
    /// A request on the compute stream.
    pub const fn new(category: Category, operator: &'static str) -> Self {
        Request { category, operator, stream: StreamKind::Compute }
    }

    /// Returns the request on another stream.
    pub const fn on(self, stream: StreamKind) -> Self {
        Request { stream, ..self }
    }
}

/// The module and step in force on a worker.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) module: Cell<Label>,
    pub(crate) step: Cell<u32>,
}

/// While it lives, allocations are labelled with a module path; dropping it restores the outer one.
#[derive(Debug)]
pub struct ModuleScope {
    device: Device,
    outer: Label,
}

impl ModuleScope {
    /// The module `name` inside of the one in force, which a scope made by [`ModuleScope::at`] may have set.
    pub(crate) fn enter(device: &Device, name: &str) -> Self {
        Self::at(device, device.intern_inside(device.current_module(), name))
    }

    pub(crate) fn at(device: &Device, module: Label) -> Self {
        let outer = device.context().module.replace(module);
        ModuleScope { device: device.clone(), outer }
    }
}

impl Drop for ModuleScope {
    fn drop(&mut self) {
        self.device.context().module.set(self.outer);
    }
}
