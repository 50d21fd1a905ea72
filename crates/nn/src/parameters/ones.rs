//! Constant weights of norms that have none of their own.

use autograd::Weight;
use device::{Category, Request};
use tensor::Tensor;

use super::Parameters;
use crate::error::Result;
use crate::init::Init;

impl Parameters {
    /// Returns a weight of `width` ones, which is not a parameter. Layers of equal width share it.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub(crate) fn ones(&mut self, width: usize) -> Result<Weight> {
        if let Some(ones) = self.ones.get(&width) {
            return Ok(Weight::frozen(ones.clone()));
        }
        let tensor = {
            let _scope = self.device.module("ones");
            Tensor::empty(&self.device, [width], self.dtype, Request::new(Category::Buffer, "ones"))?
        };
        Init::Constant(1.0).fill(&tensor, std::slice::from_ref(&(0..width)), self.seed, "ones")?;
        self.ones.insert(width, tensor.clone());
        Ok(Weight::frozen(tensor))
    }
}
