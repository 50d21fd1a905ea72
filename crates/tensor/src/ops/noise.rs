//! Uniform noise by counter-based random numbers.

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, Category, Family, Function, Request};

use super::kernels::family;
use super::site_words::SiteWords;
use super::{check, elementwise, gpu};
use crate::{Result, Tensor};

pub(super) static FAMILY: Family =
    family!("noise", headers: ["philox.cuh"], constants: elementwise::CONSTANTS);

/// The noise of one site in one micro-batch: uniform numbers in \[−`magnitude`, `magnitude`).
///
/// It is a function of the seed, the site's name, the micro-batch's number over all steps, and the element
/// index, so the same on every grid of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    words: SiteWords,
    magnitude: f32,
}

impl Noise {
    /// Returns the noise of the site `name` in micro-batch `number`.
    #[must_use]
    pub fn new(seed: u64, name: &str, number: u64, magnitude: f32) -> Self {
        Noise { words: SiteWords::new(seed, name, number), magnitude }
    }

    /// Returns the noise of the slice of an array that starts at element `first`, a multiple of 4.
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        Noise { words: self.words.from(first), ..self }
    }

    /// Returns the noise of elements 4 · `draw` to 4 · `draw` + 3 of an array.
    #[inline(always)]
    fn of_array(&self, draw: u64) -> [f32; 4] {
        self.words.of_array(draw).map(|word| self.magnitude * (2.0 * philox::uniform(word) - 1.0))
    }
}

/// Returns `x`, f32, bf16 or f16 of any shape, plus `noise`. Overwrites `x` if it is the only view of its
/// storage, else returns a new tensor of `category`.
pub fn add(x: Tensor, noise: Noise, category: Category) -> Result<Tensor> {
    const OPERATOR: &str = "noise.add";
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
            on_host(&mut out.values_mut()?, noise);
        }
        Backend::Cuda => launch(OPERATOR, &x, &out, noise)?,
    }
    Ok(out)
}

fn on_host(x: &mut [f32], noise: Noise) {
    for_pieces(x, CHUNK, |index, x| {
        for (draw, four) in x.chunks_mut(4).enumerate() {
            let added = noise.of_array((index * (CHUNK / 4) + draw) as u64);
            four.iter_mut().zip(added).for_each(|(x, added)| *x += added);
        }
    });
}

fn launch(operator: &'static str, x: &Tensor, out: &Tensor, noise: Noise) -> Result<()> {
    let vector = gpu::aligned(&[x, out]);
    let items = x.elements() / if vector { gpu::lanes(x.dtype()) } else { 1 };
    let blocks = items.div_ceil((gpu::THREADS * elementwise::UNROLL) as usize).max(1);
    let launch = x.device().kernel(Function::new(&FAMILY, "noise").with_dtype(x.dtype()));
    let launch = launch.read(x).write(out).u64(x.elements() as u64);
    let launch = noise.words.add_to(launch).f32(noise.magnitude);
    let launch = launch.u64(noise.words.first_draw).u32(u32::from(vector));
    let launch = launch.cost(gpu::bytes(&[x, out]), 25 * x.elements() as u64);
    Ok(launch.launch([gpu::word(operator, blocks)?, 1, 1], gpu::THREADS)?)
}
