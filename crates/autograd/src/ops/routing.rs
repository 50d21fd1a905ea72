//! The choice of experts for each row.

use tensor::Tensor;
use tensor::ops::routing::{self as kernel, Balance, Balancing, Routes, Routing, TokenRows};

use super::{named, only};
use crate::error::Result;
use crate::pass::LossScale;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::tape::Tape;

const OPERATOR: &str = "routing";

/// Tensors of a router other than its parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouterState<'a> {
    /// Correction added to the scores for choosing experts, `[experts]` f32.
    pub correction: Option<&'a Tensor>,
    /// Counts of rows per expert, to be increased, `[experts]` u32.
    pub loads: Option<&'a Tensor>,
    /// Whether balancing losses apply; true for one shard of a layer only.
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
    tokens: Option<TokenRows>,
}

/// Chooses experts for `logits_te [rows, experts]` f32. Returns the weights of the choices, `[rows,
/// per_token]` f32, and the routes. The pass's balancing losses affect only the gradient of the logits, not
/// the loss.
pub fn routing(
    tape: &Tape,
    logits_te: Var,
    routing: &Routing,
    state: RouterState<'_>,
) -> Result<(Var, Routes)> {
    tape.begin(OPERATOR)?;
    let tokens = tape.pass().tokens.clone();
    let forward =
        kernel::forward(logits_te.tensor(), state.correction, routing, state.loads, tokens.as_ref());
    let routes = named(OPERATOR, forward)?;
    // A mean over the step's tokens is a sum over pieces; a mean over rows is a mean over pieces.
    let parts = if tokens.is_some() { 1.0 } else { tape.pieces().map_or(1, |pieces| pieces.all) as f32 };
    let of_piece = |all: Balance| Balance { load: all.load / parts, logits: all.logits / parts };
    let weights_tp = tape.record_one(&[logits_te.source()], routes.weights.clone(), || RoutingRule {
        logits: logits_te.tensor().clone(),
        routes: routes.clone(),
        routing: *routing,
        balance: tape.pass().balance.filter(|_| state.balances).map(of_piece),
        loss_scale: tape.pass().loss_scale.clone(),
        tokens,
    })?;
    Ok((weights_tp, routes))
}

impl Rule for RoutingRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let Routes { weights, choices, slots, sources, offsets, counts, token_counts } = &self.routes;
        let saved = [
            ("logits", &self.logits),
            ("weights", weights),
            ("choices", choices),
            ("slots", slots),
            ("sources", sources),
            ("offsets", offsets),
            ("counts", counts),
        ]
        .map(|(name, tensor)| Saved::new(name, tensor));
        let token_counts = token_counts.iter().map(|counts| Saved::new("token_counts", counts));
        saved.into_iter().chain(token_counts).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let RoutingRule { logits, routes, routing, balance, loss_scale, tokens } = self;
        let balancing = Balancing {
            factors: balance.unwrap_or_default(),
            loss_scale: loss_scale.as_ref().map(|factor| &factor.scale),
            tokens: tokens.as_ref(),
        };
        Ok(vec![Some(kernel::backward(&only(outputs)?, logits, routes, routing, balancing)?)])
    }
}
