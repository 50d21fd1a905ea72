//! Scopes that label allocations with a module path.

use memory::Label;

use crate::device::Device;
use crate::nvtx;

/// A guard that labels allocations with a module path. Dropping it restores the outer path.
#[derive(Debug)]
pub struct ModuleScope {
    device: Device,
    outer: Label,
    /// Whether the scope is a range of a tool.
    is_range: bool,
}

impl ModuleScope {
    /// Enters module `name` inside the current one, which [`ModuleScope::at`] may have set.
    pub(crate) fn enter(device: &Device, name: &str) -> Self {
        Self::at(device, device.intern_inside(device.current_module(), name))
    }

    pub(crate) fn at(device: &Device, module: Label) -> Self {
        let outer = device.context().module.replace(module);
        let is_range = nvtx::is_attached();
        if is_range {
            device.with_allocator(|allocator| nvtx::push(allocator.labels().name(module)));
        }
        ModuleScope { device: device.clone(), outer, is_range }
    }
}

impl Drop for ModuleScope {
    fn drop(&mut self) {
        self.device.context().module.set(self.outer);
        if self.is_range {
            nvtx::pop();
        }
    }
}

impl Device {
    /// Labels allocations with `name`, inside the current module path, until the guard is dropped.
    pub fn module(&self, name: &str) -> ModuleScope {
        ModuleScope::enter(self, name)
    }

    /// Labels allocations with a known module (such as a backward rule's), until the guard is dropped.
    pub fn at_module(&self, module: Label) -> ModuleScope {
        ModuleScope::at(self, module)
    }
}
