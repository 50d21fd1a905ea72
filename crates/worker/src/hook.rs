//! User code around the model.

use std::fmt;
use std::sync::Arc;

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
