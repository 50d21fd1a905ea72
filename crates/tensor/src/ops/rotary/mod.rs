//! Rotary position embeddings (Su and others, *RoFormer*, 2021), half-split as Hugging Face stores heads:
//! elements i and i + width/2 of a head turn by the angle position · frequency(i).

pub(super) mod cpu;
pub(crate) mod cuda;
mod frequencies;

pub use frequencies::{Frequencies, Scaling};

use device::{Backend, Category, DType, Request};

use super::check;
use crate::{Result, Tensor, TensorError};

/// The angles of positions and heads, and the tokens' documents.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a> {
    /// Cosines of width/2 angles, then their sines, for every position: `[context, width]` f32.
    pub table: &'a Tensor,
    /// The position in its sequence at which a token's document begins, where positions count from: `[batch,
    /// time]` u32. `None`: 0.
    pub documents: Option<&'a Tensor>,
}

/// The direction of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// By the angles: the forward pass.
    Forward,
    /// Back: the gradient.
    Back,
}

/// Turns the first `heads` heads of the rows of `x [batch, time, columns]`, f32 or bf16. In place if nothing
/// else looks at the storage of `x`, else in a new tensor. Errors: shapes or types that do not agree, more
/// positions than the table has, an odd head width, out of memory.
pub fn rotate(x: Tensor, heads: usize, angles: Angles<'_>, turn: Turn) -> Result<Tensor> {
    const OPERATOR: &str = "rotary.rotate";
    check::computed(OPERATOR, &[("x", &x)])?;
    let width = check_angles(OPERATOR, &x, angles)?;
    if heads * width > x.shape().columns() {
        return Err(check::wrong(OPERATOR, "x", &x, format!("at least {} columns", heads * width)));
    }
    let x = if x.is_unique() { x } else { copy(OPERATOR, &x, turn)? };
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let time = x.shape().dims()[1];
            let documents = angles.documents.map(Tensor::read::<u32>).transpose()?;
            check_documents(OPERATOR, documents.as_deref(), time)?;
            let table = angles.table.read()?;
            let read = cpu::Angles { table: &table, documents: documents.as_deref(), time, width };
            cpu::rotate(&mut x.write()?, x.shape().columns(), heads, read, turn);
        }
        Backend::Cuda => cuda::rotate(OPERATOR, &x, heads, angles, turn)?,
    }
    Ok(x)
}

fn copy(operator: &'static str, x: &Tensor, turn: Turn) -> Result<Tensor> {
    let category = match turn {
        Turn::Forward => Category::Activation,
        Turn::Back => Category::ActivationGradient,
    };
    let own = Tensor::empty(x.device(), x.shape(), x.dtype(), Request::new(category, operator))?;
    own.copy_from(x)?;
    Ok(own)
}

/// Returns the head width of the table. Errors: a table or documents that do not fit `x [batch, time, ..]`.
pub(super) fn check_angles(operator: &'static str, x: &Tensor, angles: Angles<'_>) -> Result<usize> {
    check::rank(operator, "x", x, 3)?;
    check::rank(operator, "table", angles.table, 2)?;
    check::f32s(operator, &[("table", angles.table)])?;
    let (context, width) = (angles.table.shape().rows(), angles.table.shape().columns());
    let [batch, time] = [x.shape().dims()[0], x.shape().dims()[1]];
    if time > context || !width.is_multiple_of(2) {
        return Err(check::wrong(operator, "table", angles.table, format!("[{time} or more, even]")));
    }
    if let Some(documents) = angles.documents {
        check::dtype(operator, "documents", documents, DType::U32)?;
        check::shape(operator, "documents", documents, [batch, time])?;
    }
    Ok(width)
}

/// Refuses documents that begin after a token of theirs, where the host can see them.
pub(super) fn check_documents(operator: &'static str, documents: Option<&[u32]>, time: usize) -> Result<()> {
    let late = |(index, first): (usize, &u32)| (*first as usize > index % time).then_some(*first);
    match documents.and_then(|documents| documents.iter().enumerate().find_map(late)) {
        Some(index) => Err(TensorError::Index { operator, index, limit: time }),
        None => Ok(()),
    }
}
