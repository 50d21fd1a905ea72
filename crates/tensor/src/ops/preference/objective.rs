//! Loss functions of a pair of answers.

/// Loss function of a pair of answers. In the formulas, π is ln p of an answer, ρ is ln p by the reference
/// model, n is the answer's number of tokens, c the chosen and r the rejected answer, and ln σ(x) = −ln(1 +
/// e^−x).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Direct preference optimisation: −(1 − ε) ln σ(h) − ε ln σ(−h) with h = β ((π − ρ)_c − (π − ρ)_r).
    Dpo {
        /// β, the strength of the penalty for deviating from the reference.
        beta: f32,
        /// ε, the probability that a preference is wrong.
        label_smoothing: f32,
    },
    /// Identity preference optimisation: (((π − ρ) / n)_c − ((π − ρ) / n)_r − 1 / 2β)².
    Ipo {
        /// β, the strength of the penalty for deviating from the reference.
        beta: f32,
    },
    /// Odds-ratio preference optimisation: the mean −ln p of the targets of chosen sequences, minus
    /// λ ln σ(odds(π / n)_c − odds(π / n)_r) with odds(a) = a − ln(1 − e^a).
    Orpo {
        /// λ, the weight of the odds ratio's loss.
        lambda: f32,
    },
}

impl Objective {
    /// Returns whether the loss needs scores of a reference model.
    #[must_use]
    pub fn has_reference(self) -> bool {
        !matches!(self, Objective::Orpo { .. })
    }

    /// Returns whether the loss includes targets before the answer, in chosen sequences.
    #[must_use]
    pub fn learns_prompts(self) -> bool {
        matches!(self, Objective::Orpo { .. })
    }

    /// Returns the objective's id in kernels, its β or λ, and its label smoothing ε.
    pub(super) fn parameters(self) -> (u32, f32, f32) {
        match self {
            Objective::Dpo { beta, label_smoothing } => (0, beta, label_smoothing),
            Objective::Ipo { beta } => (1, beta, 0.0),
            Objective::Orpo { lambda } => (2, lambda, 0.0),
        }
    }
}
