//! Code of one's own around the model.

use std::fmt;
use std::sync::Arc;

use nn::Model;

type Wrap = dyn Fn(Box<dyn Model>) -> Box<dyn Model> + Send + Sync;

/// What every rank does with the model that its configuration describes, or with its stage of it, before it trains: to look at
/// what flows through it, or to change that. The plan does the same, so that what the code takes is planned.
#[derive(Clone)]
pub struct ModelHook(Arc<Wrap>);

impl ModelHook {
    /// Calls `wrap` with the model, and trains what it returns. That must have the same parameters.
    pub fn new(wrap: impl Fn(Box<dyn Model>) -> Box<dyn Model> + Send + Sync + 'static) -> Self {
        ModelHook(Arc::new(wrap))
    }

    pub(crate) fn wrap(&self, model: Box<dyn Model>) -> Box<dyn Model> {
        (self.0)(model)
    }
}

impl fmt::Debug for ModelHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelHook")
    }
}
