//! Who is asking: the category, module, operator and step that go with every request for memory.

use std::cell::{Cell, RefCell};

use memory::{Category, Label};

use crate::{Device, StreamKind};

/// What an operator says of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What the bytes are for.
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

    /// The same request on another stream.
    pub const fn on(self, stream: StreamKind) -> Self {
        Request { stream, ..self }
    }
}

/// The module path and step in force on a worker.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) path: RefCell<String>,
    pub(crate) module: Cell<Label>,
    pub(crate) step: Cell<u32>,
}

/// While it lives, allocations are labelled with a module path; dropping it restores the outer one.
#[derive(Debug)]
pub struct ModuleScope {
    device: Device,
    outer_length: usize,
    outer: Label,
}

impl ModuleScope {
    pub(crate) fn enter(device: &Device, name: &str) -> Self {
        let context = device.context();
        let outer = context.module.get();
        let mut path = context.path.borrow_mut();
        let outer_length = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(name);
        context.module.set(device.intern(&path));
        ModuleScope { device: device.clone(), outer_length, outer }
    }

    pub(crate) fn at(device: &Device, module: Label) -> Self {
        let context = device.context();
        let outer = context.module.replace(module);
        let outer_length = context.path.borrow().len();
        ModuleScope { device: device.clone(), outer_length, outer }
    }
}

impl Drop for ModuleScope {
    fn drop(&mut self) {
        let context = self.device.context();
        context.path.borrow_mut().truncate(self.outer_length);
        context.module.set(self.outer);
    }
}
