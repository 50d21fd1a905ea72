//! The keys of `[precision]`.

use device::DType;
use keys::{Row, choice, section};
use nn::{Fp8Layers, Fp8Recipe};

use crate::choices::{MatmulPrecision, WeightType};

section! {
    /// `[precision]`: the types of values.
    pub struct Precision = "precision" {
        /// The type of activations and their gradients. Half precision keeps master weights, statistics, sums
        /// and the loss in f32; f16 has a dynamic loss scale (`[precision.scaler]`).
        compute: DType = choice!(DType, [DType::F32, DType::Bf16, DType::F16]).default("\"f32\"")
            .decides_times();
        /// The type of the weights that operators hold: the compute type, beside f32 masters that the
        /// optimizer updates, or f32 alone. Then matmuls cast weights and activations to the compute type,
        /// and norms, sums and the residual stream are f32 (PyTorch's autocast).
        weights: WeightType =
            choice!(WeightType, WeightType::ALL).default("\"compute\"").decides_times();
        /// The type of the weights' gradients and of every sum of them; a half type needs `compute` of the
        /// same type.
        gradients: DType = choice!(DType, [DType::F32, DType::Bf16, DType::F16]).default("\"f32\"")
            .decides_times();
        /// Whether matmuls of f32 round their operands to TF32 on GPUs that have it (sm_80 and later).
        tf32: bool = Row::flag().default("false").decides_times();
        /// The type of the operands of linear layers' matmuls: that of `compute`, or FP8 (E4M3), which needs
        /// a GPU of compute capability 8.9 and bf16, or the CPU, which emulates it. Sums, outputs and
        /// everything else stay as `compute` says.
        matmul: MatmulPrecision =
            choice!(MatmulPrecision, MatmulPrecision::ALL).default("\"compute\"").decides_times();
        /// Factors of FP8 operands, from their current largest magnitudes: one of a whole tensor, or one of
        /// every row.
        fp8_recipe: Fp8Recipe = choice!(Fp8Recipe, Fp8Recipe::ALL).default("\"tensorwise\"").decides_times();
        /// The format of gradients in FP8 matmuls: E4M3 rounds to 3 bits, E5M2 to 2 bits with the larger
        /// range.
        fp8_gradients: DType =
            choice!(DType, [DType::E4m3, DType::E5m2]).default("\"e4m3\"").decides_times();
        /// Globs of the linear layers that multiply in FP8, such as `"*.mlp.*"`; without one all but the
        /// model's first one and its head.
        fp8_layers: Vec<String> = Row::texts().default("[]").decides_times();
    }
}

impl Precision {
    /// Returns the types for reports: `f32`, `bf16`, or `bf16 with fp8 matmuls and bf16 gradients`.
    #[must_use]
    pub fn name(&self) -> String {
        let compute = self.compute.name();
        let matmuls = match self.matmul {
            MatmulPrecision::Compute => None,
            MatmulPrecision::Fp8 => Some("fp8 matmuls".to_owned()),
        };
        let gradients = (self.gradients != DType::F32).then(|| format!("{} gradients", self.gradients));
        let weights = self.is_autocast().then(|| "f32 weights".to_owned());
        let parts: Vec<_> = matmuls.into_iter().chain(gradients).chain(weights).collect();
        match parts.is_empty() {
            true => compute.to_owned(),
            false => format!("{compute} with {}", parts.join(" and ")),
        }
    }

    /// The type of the weights that operators hold, and of the model's inputs.
    #[must_use]
    pub fn weight_dtype(&self) -> DType {
        match self.weights {
            WeightType::Compute => self.compute,
            WeightType::F32 => DType::F32,
        }
    }

    /// Returns whether operators cast f32 weights to a half type.
    #[must_use]
    pub fn is_autocast(&self) -> bool {
        self.weight_dtype() != self.compute
    }

    /// Returns the choice of layers that multiply in FP8; `None` if all multiply in the compute type.
    ///
    /// # Errors
    /// An invalid glob, in a sentence.
    pub(crate) fn fp8(&self) -> Result<Option<Fp8Layers>, String> {
        match self.matmul {
            MatmulPrecision::Compute => Ok(None),
            MatmulPrecision::Fp8 => {
                Fp8Layers::new(self.fp8_recipe, self.fp8_gradients, &self.fp8_layers).map(Some)
            }
        }
    }
}
