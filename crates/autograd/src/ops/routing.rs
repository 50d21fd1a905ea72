//! The choice of experts for each row.

use tensor::Tensor;
use tensor::ops::routing::{self as kernel, Balance, Routes, Routing};

use super::{named, only};
use crate::error::Result;
use crate::pass::LossScale;
use crate::rule::{Rule, Saved};
use crate::tape::{Tape, Var};

const OPERATOR: &str = "routing";

/// The tensors of a router beside its parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouterState<'a> {
    /// Added to scores where experts are chosen, `[experts]` f32.
    pub correction: Option<&'a Tensor>,
    /// Counts of the rows of each expert to add to, `[experts]` u32.
    pub loads: Option<&'a Tensor>,
    /// Whether the losses that balance loads apply: to one lane of a layer.
    pub balances: bool,
}

/// Backward of [`routing`].
#[derive(Debug)]
pub struct RoutingRule {
    logits: Tensor,
    routes: Routes,
    routing: Routing,
    balance: Option<Balance>,
    loss_scale: Option<LossScale>,
}

/// Returns the weights of the choices, `[rows, per_token]` f32, and the routes, for `logits [rows, experts]`
/// f32. The balancing losses of the pass add to the gradient of the logits, and not to a loss.
///
/// # Errors
/// As [`kernel::forward`].
pub fn routing(tape: &Tape, logits: Var, routing: &Routing, state: RouterState<'_>) -> Result<(Var, Routes)> {
    tape.begin(OPERATOR)?;
    let routes = named(OPERATOR, kernel::forward(logits.tensor(), state.correction, routing, state.loads))?;
    let parts = tape.pieces_of_sequence() as f32;
    let of_piece = |all: Balance| Balance { load: all.load / parts, logits: all.logits / parts };
    let weights = tape.record_one(&[logits.source()], routes.weights.clone(), || RoutingRule {
        logits: logits.tensor().clone(),
        routes: routes.clone(),
        routing: *routing,
        balance: tape.pass().balance.filter(|_| state.balances).map(of_piece),
        loss_scale: tape.pass().loss_scale.clone(),
    })?;
    Ok((weights, routes))
}

impl Rule for RoutingRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let Routes { weights, choices, slots, sources, offsets, counts } = &self.routes;
        [
            ("logits", &self.logits),
            ("weights", weights),
            ("choices", choices),
            ("slots", slots),
            ("sources", sources),
            ("offsets", offsets),
            ("counts", counts),
        ]
        .map(|(name, tensor)| Saved::new(name, tensor))
        .into()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let RoutingRule { logits, routes, routing, balance, loss_scale } = self;
        let scale = loss_scale.as_ref().map(|factor| &factor.scale);
        let balance = balance.map(|balance| (balance, scale));
        Ok(vec![Some(kernel::backward(&only(outputs)?, logits, routes, routing, balance)?)])
    }
}
