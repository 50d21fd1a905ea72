//! Operands of a scan, and their sizes.

use device::DType;

use super::cpu;
use super::heads::{CHUNK, StateHeads};
use crate::ops::{check, rotary};
use crate::{Result, Tensor};

/// Operands of a scan, all of one type but for the documents.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// The columns of x of all heads, then the columns of B and of C of all groups: `[batch, time, columns]`.
    pub xbc: &'a Tensor,
    /// Time steps before their bias and softplus, `[batch, time, heads]`.
    pub dt: &'a Tensor,
    /// Logarithms of minus A, `[heads]`.
    pub a_log: &'a Tensor,
    /// Factors of x in the output, `[heads]`.
    pub d: &'a Tensor,
    /// Bias of time steps, `[heads]`.
    pub bias: &'a Tensor,
    /// Sizes of the heads.
    pub heads: StateHeads,
    /// Least and largest time step.
    pub limits: [f32; 2],
    /// Position in its sequence where each token's document starts, `[batch, time]` u32; negative (modulo
    /// 2³²) if it starts before the sequence. `None`: all 0.
    pub documents: Option<&'a Tensor>,
}

/// Gradients of a scan's inputs, and partial sums of its weights' gradients.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Gradient of x, B and C.
    pub xbc: Tensor,
    /// Gradient of the time steps.
    pub dt: Tensor,
    /// Sums of each chunk for `a_log`, `d` and `bias`, `[batch · chunks, 3 · heads]` f32.
    pub sums: Tensor,
}

impl Operands<'_> {
    /// Returns the number of chunks of a sequence.
    pub(super) fn chunks(&self) -> usize {
        self.xbc.shape().dims()[1].div_ceil(CHUNK)
    }

    /// Returns the shape of an output, `[batch, time, columns]`.
    pub(super) fn output_shape(&self) -> [usize; 3] {
        let dims = self.xbc.shape();
        [dims.dims()[0], dims.dims()[1], self.heads.columns()]
    }

    pub(super) fn check(&self, operator: &'static str) -> Result<()> {
        let Operands { xbc, dt, a_log, d, bias, heads, documents, .. } = self;
        let named = [("xbc", *xbc), ("dt", *dt), ("a_log", *a_log), ("d", *d), ("bias", *bias)];
        check::computed(operator, &named)?;
        check::rank(operator, "xbc", xbc, 3)?;
        let [batch, time] = [xbc.shape().dims()[0], xbc.shape().dims()[1]];
        check::shape(operator, "xbc", xbc, [batch, time, heads.packed_columns()])?;
        check::shape(operator, "dt", dt, [batch, time, heads.heads])?;
        if heads.groups == 0 || !heads.heads.is_multiple_of(heads.groups) {
            let expected = format!("a multiple of {} heads", heads.groups);
            return Err(check::wrong(operator, "dt", dt, expected));
        }
        named[2..]
            .iter()
            .try_for_each(|(name, weight)| check::shape(operator, name, weight, [heads.heads]))?;
        if let Some(documents_bl) = documents {
            check::dtype(operator, "documents", documents_bl, DType::U32)?;
            check::shape(operator, "documents", documents_bl, [batch, time])?;
        }
        Ok(())
    }

    /// Checks the gradient of the output.
    pub(super) fn check_gradient(&self, operator: &'static str, dy_blc: &Tensor) -> Result<()> {
        check::dtype(operator, "dy", dy_blc, self.xbc.dtype())?;
        check::shape(operator, "dy", dy_blc, self.output_shape())
    }

    /// Checks the states of sequences.
    pub(super) fn check_state(&self, operator: &'static str, state: &Tensor) -> Result<()> {
        let StateHeads { heads, states, width, .. } = self.heads;
        check::f32s(operator, &[("state", state)])?;
        let slots = state.shape().dims().first().copied().unwrap_or_default();
        check::shape(operator, "state", state, [slots, heads, states, width])?;
        match slots <= self.xbc.shape().dims()[0] {
            true => Ok(()),
            false => Err(check::wrong(operator, "xbc", self.xbc, format!("[at least {slots}, _, _]"))),
        }
    }

    /// Calls `compute` with the operands' values on the host.
    pub(super) fn on_host(
        &self,
        operator: &'static str,
        compute: impl FnOnce(cpu::Scan<'_>) -> Result<()>,
    ) -> Result<()> {
        let time = self.xbc.shape().dims()[1];
        let documents = self.documents.map(Tensor::read::<u32>).transpose()?;
        rotary::check_documents(operator, documents.as_deref(), time)?;
        compute(cpu::Scan {
            xbc: &self.xbc.values()?,
            dt: &self.dt.values()?,
            a_log: &self.a_log.values()?,
            d: &self.d.values()?,
            bias: &self.bias.values()?,
            documents: documents.as_deref(),
            heads: self.heads,
            limits: self.limits,
            time,
        })
    }
}
