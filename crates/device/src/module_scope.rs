//! Scopes that label allocations with a module path.

use memory::Label;

use crate::context::{ModuleEvent, ModuleObserver};
use crate::device::Device;
use crate::nvtx;

/// A guard that labels allocations with a module path. Dropping it restores the outer path.
#[derive(Debug)]
pub struct ModuleScope {
    device: Device,
    outer: Label,
    is_range: bool,
}

impl ModuleScope {
    /// Enters module `name` inside the current one, which [`ModuleScope::at`] may have set.
    pub(crate) fn enter(device: &Device, name: &str) -> Self {
        Self::at(device, device.intern_inside(device.current_module(), name))
    }

    pub(crate) fn at(device: &Device, module: Label) -> Self {
        let outer = device.context().module.replace(module);
        device.tell_module(module, true);
        let is_range = nvtx::is_attached();
        if is_range {
            device.with_allocator(|allocator| nvtx::push(allocator.labels().name(module)));
        }
        ModuleScope { device: device.clone(), outer, is_range }
    }
}

impl Drop for ModuleScope {
    fn drop(&mut self) {
        let module = self.device.context().module.replace(self.outer);
        self.device.tell_module(module, false);
        if self.is_range {
            nvtx::pop();
        }
    }
}

impl Device {
    /// Calls `observer` whenever the host enters or leaves a module; `None` removes the observer.
    pub fn observe_modules(&self, observer: Option<ModuleObserver>) {
        *self.context().observer.borrow_mut() = observer;
    }

    fn tell_module(&self, module: Label, enters: bool) {
        // Cloned, so that the observer may itself enter modules.
        let Some(observer) = self.context().observer.borrow().clone() else { return };
        let (path, counters) = self.with_allocator(|allocator| {
            (allocator.labels().name(module).to_owned(), allocator.statistics().clone())
        });
        let rank = self.rank();
        let step = self.step();
        observer.hear(&ModuleEvent { path: &path, enters, rank, step, counters: &counters });
    }

    /// Labels allocations with `name`, inside the current module path, until the guard is dropped.
    pub fn module(&self, name: &str) -> ModuleScope {
        ModuleScope::enter(self, name)
    }

    /// Labels allocations with a module entered before (such as a backward rule's), until the guard is
    /// dropped.
    pub fn at_module(&self, module: Label) -> ModuleScope {
        ModuleScope::at(self, module)
    }
}
