//! The context of a memory request: category, module, operator and step.

use std::cell::Cell;

use memory::{Category, Label};

use crate::stream::StreamKind;

/// An operator's memory request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Purpose of the memory.
    pub category: Category,
    /// Name of the operator that requests.
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

/// The module and step that label a worker's allocations.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) module: Cell<Label>,
    pub(crate) step: Cell<u32>,
}
