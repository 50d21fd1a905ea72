//! Settings of routers.

use crate::Tensor;

device::names! {
    /// The scores of experts, as a function of a row's logits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ScoreFunction {
        /// Softmax over all experts.
        #[default]
        Softmax = "softmax",
        /// The sigmoid of each logit, as in DeepSeek-V3.
        Sigmoid = "sigmoid",
    }
}

/// The choice of experts for a row, and the weights of their results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Number of experts.
    pub experts: usize,
    /// Experts of a row.
    pub per_token: usize,
    /// The scores of experts.
    pub scores: ScoreFunction,
    /// Whether the weights of a row are divided by their sum. Softmax over the chosen logits gives the same.
    pub normalised: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// Groups of consecutive experts, which divide them equally.
    pub groups: usize,
    /// Groups that a row's experts are in: the ones in which the two largest scores have the largest sum, as
    /// in DeepSeek-V3.
    pub groups_per_token: usize,
    /// Rows of which the first of each expert is a multiple: 1, or more where matmuls read rows together. The
    /// rows between are zeros.
    pub alignment: usize,
}

impl Routing {
    /// Number of rows of experts for `rows` rows, whatever the routing.
    #[must_use]
    pub fn slots(&self, rows: usize) -> usize {
        let most = rows * self.per_token + self.experts * (self.alignment - 1);
        if rows == 0 { 0 } else { most / self.alignment * self.alignment }
    }
}

/// The rows of a call that are tokens, where others are padding.
#[derive(Clone, Debug)]
pub struct TokenRows {
    /// 1 for each row that is a token, else 0: u32 `[rows]`.
    pub mask: Tensor,
    /// The number of tokens over which balancing losses are means, one u32: those of all calls of a step.
    pub count: Tensor,
}

/// Losses that balance the loads of experts, each as a factor of its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balance {
    /// Factor of experts · Σ f · P over experts, with the share f of choices that are an expert and the mean
    /// P of its normalised scores over rows (Fedus et al., *Switch Transformers*, 2021): 1 for equal loads.
    /// Of [`TokenRows`] it is that of all calls, each with a weight of its tokens.
    pub load: f32,
    /// Factor of the mean over rows of the square of logits' log-sum-exp (Zoph et al., *ST-MoE*, 2022).
    pub logits: f32,
}

/// The balancing losses of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balancing<'a> {
    /// Their factors.
    pub factors: Balance,
    /// A factor of both on the device, one f32.
    pub loss_scale: Option<&'a Tensor>,
    /// The rows of which they are losses; `None`: all.
    pub tokens: Option<&'a TokenRows>,
}
