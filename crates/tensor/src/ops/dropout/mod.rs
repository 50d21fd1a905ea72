//! Dropout (Srivastava and others, *Dropout: A Simple Way to Prevent Neural Networks from Overfitting*, 2014)
//! with counter-based masks.

mod mask;

pub use mask::Mask;

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, Category, Family, Function, Request};

use super::kernels::family;
use super::{check, elementwise, gpu};
use crate::{Result, Tensor};

pub(super) static FAMILY: Family =
    family!("dropout", headers: ["philox.cuh"], constants: elementwise::CONSTANTS);

/// Returns `x`, f32 or bf16 of any shape, times the factors of `mask`. The same call turns the output's
/// gradient into the input's. Overwrites `x` if no other view of its storage exists, and else returns a new
/// tensor of `category`.
pub fn apply(x: Tensor, mask: Mask, category: Category) -> Result<Tensor> {
    const OPERATOR: &str = "dropout.apply";
    check::computed(OPERATOR, &[("x", &x)])?;
    let out = match x.is_unique() {
        true => x.clone().with_maxima(None),
        false => x.like(x.dtype(), Request::new(category, OPERATOR))?,
    };
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            if !out.shares_storage(&x) {
                out.copy_from(&x)?;
            }
            on_host(&mut out.values_mut()?, mask);
        }
        Backend::Cuda => launch(OPERATOR, &x, &out, mask)?,
    }
    Ok(out)
}

fn on_host(x: &mut [f32], mask: Mask) {
    for_pieces(x, CHUNK, |index, x| {
        for (draw, four) in x.chunks_mut(4).enumerate() {
            let factors = mask.of_array((index * (CHUNK / 4) + draw) as u64);
            four.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
        }
    });
}

fn launch(operator: &'static str, x: &Tensor, out: &Tensor, mask: Mask) -> Result<()> {
    let vector = gpu::aligned(&[x, out]);
    let items = x.elements() / if vector { gpu::lanes(x.dtype()) } else { 1 };
    let blocks = items.div_ceil((gpu::THREADS * elementwise::UNROLL) as usize).max(1);
    let launch = x.device().kernel(Function::new(&FAMILY, "dropout").with_dtype(x.dtype()));
    let launch = launch.read(x).write(out).u64(x.elements() as u64);
    let launch = mask.add_to(launch).u64(mask.first_draw()).u32(u32::from(vector));
    let launch = launch.cost(gpu::bytes(&[x, out]), 25 * x.elements() as u64);
    Ok(launch.launch([gpu::word(operator, blocks)?, 1, 1], gpu::THREADS)?)
}
