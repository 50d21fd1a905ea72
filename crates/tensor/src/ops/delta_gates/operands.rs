//! Operands of decays and rates.

use device::DType;

use crate::ops::check;
use crate::{Result, Tensor};

/// Operands of the gates, all of one type.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Projection that decays are computed from, `[batch, time, decays]`.
    pub a: &'a Tensor,
    /// Projection that rates are computed from, `[batch, time, heads]`.
    pub b: &'a Tensor,
    /// Logarithm of each head's speed of decay, `[heads]` elements.
    pub log_speed: &'a Tensor,
    /// Bias of `a`, `[decays]`.
    pub bias: &'a Tensor,
}

/// Decays and rates, or their gradients.
#[derive(Clone, Debug)]
pub struct Gates<T> {
    /// Decay gate: the operand `a`, the logarithm of the decays, or its gradient.
    pub decay: T,
    /// Rate gate: the operand `b`, the rates, or their gradient.
    pub rate: T,
}

/// Sizes of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    pub(super) decays: usize,
    pub(super) heads: usize,
}

impl Sizes {
    /// Decays of a head.
    pub(super) fn channels(&self) -> usize {
        self.decays / self.heads
    }
}

impl Operands<'_> {
    pub(super) fn check(&self, operator: &'static str) -> Result<(Sizes, DType)> {
        let Operands { a, b, log_speed, bias } = *self;
        let operands = [("a", a), ("b", b), ("log_speed", log_speed), ("bias", bias)];
        let dtype = check::computed(operator, &operands)?;
        check::rank(operator, "a", a, 3)?;
        let sizes =
            Sizes { rows: a.shape().rows(), decays: a.shape().columns(), heads: log_speed.elements() };
        if sizes.heads == 0 || !sizes.decays.is_multiple_of(sizes.heads) {
            return Err(check::wrong(operator, "a", a, format!("columns of {} heads", sizes.heads)));
        }
        check::shape(operator, "b", b, check::with_columns(a.shape(), sizes.heads))?;
        check::elements(operator, "bias", bias, sizes.decays)?;
        Ok((sizes, dtype))
    }
}

pub(super) fn check_gradients(
    operator: &'static str,
    gradients: &Gates<&Tensor>,
    operands: Operands<'_>,
) -> Result<()> {
    check::f32s(operator, &[("ddecay", gradients.decay), ("drate", gradients.rate)])?;
    check::shape(operator, "ddecay", gradients.decay, operands.a.shape())?;
    check::shape(operator, "drate", gradients.rate, operands.b.shape())
}
