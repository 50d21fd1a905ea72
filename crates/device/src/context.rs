//! The context of a request for memory: category, module, operator and step.

use std::cell::Cell;

use memory::{Category, Label};

use crate::stream::StreamKind;

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
