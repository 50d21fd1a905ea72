//! The keys of `[precision]`.

use device::DType;
use keys::{Row, choice, section};
use nn::{Fp8Layers, Fp8Recipe};

use crate::choices::{MatmulPrecision, WeightType};

section! {
    /// `[precision]`: the types of weights, activations and gradients.
    pub struct Precision = "precision" {
        /// The type of activations and their gradients. Half precision keeps master weights, statistics, sums
        /// and the loss in f32; f16 also uses a dynamic loss scale (`[precision.scaler]`).
        compute: DType = choice!(DType, [DType::F32, DType::Bf16, DType::F16]).default("\"f32\"")
            .decides_times();
        /// The type of the weights that operators read: "compute", with f32 master weights for the optimizer
        /// if it is a half type, or "f32" alone. With f32, matmuls cast weights and activations to the
        /// compute type, and norms, sums and the residual stream are f32 (PyTorch's autocast).
        weights: WeightType =
            choice!(WeightType, WeightType::ALL).default("\"compute\"").decides_times();
        /// The type of weight gradients and of all their sums; a half type must equal `compute`.
        gradients: DType = choice!(DType, [DType::F32, DType::Bf16, DType::F16]).default("\"f32\"")
            .decides_times();
        /// Whether f32 matmuls round their operands to TF32 on GPUs that support it (sm_80 and later).
        tf32: bool = Row::flag().default("false").decides_times();
        /// The operand type of the matmuls of linear layers: that of `compute`, or FP8 (E4M3). FP8 needs bf16
        /// and a GPU of compute capability 8.9, or the CPU, which emulates it. Sums, outputs and all other
        /// operators keep the type of `compute`.
        matmul: MatmulPrecision =
            choice!(MatmulPrecision, MatmulPrecision::ALL).default("\"compute\"").decides_times();
        /// Scaling of FP8 operands by their current largest magnitudes: one factor for a whole tensor, or one
        /// for each row.
        fp8_recipe: Fp8Recipe = choice!(Fp8Recipe, Fp8Recipe::ALL).default("\"tensorwise\"").decides_times();
        /// The FP8 format of gradients: E4M3 has 3 mantissa bits, E5M2 has 2 and a larger range.
        fp8_gradients: DType =
            choice!(DType, [DType::E4m3, DType::E5m2]).default("\"e4m3\"").decides_times();
        /// Globs of the linear layers that multiply in FP8, such as `"*.mlp.*"`; by default, all except the
        /// model's first and its head.
        fp8_layers: Vec<String> = Row::texts().default("[]").decides_times();
    }
}

impl Precision {
    /// Formats the types for reports: `f32`, `bf16`, or `bf16 with fp8 matmuls and bf16 gradients`.
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

    /// Returns the type of the weights that operators read, and of the model's inputs.
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

    /// Returns which layers multiply in FP8; `None` if all multiply in the compute type.
    ///
    /// # Errors
    /// A sentence about an invalid glob.
    pub(crate) fn fp8(&self) -> Result<Option<Fp8Layers>, String> {
        match self.matmul {
            MatmulPrecision::Compute => Ok(None),
            MatmulPrecision::Fp8 => {
                Fp8Layers::new(self.fp8_recipe, self.fp8_gradients, &self.fp8_layers).map(Some)
            }
        }
    }
}
