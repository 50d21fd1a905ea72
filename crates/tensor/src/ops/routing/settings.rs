//! Settings of routers.

use crate::Tensor;

device::names! {
    /// Function that computes the scores of experts from a row's logits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ScoreFunction {
        /// Softmax over all experts.
        #[default]
        Softmax = "softmax",
        /// The sigmoid of each logit, as in DeepSeek-V3.
        Sigmoid = "sigmoid",
    }
}

/// Settings of the choice of experts for each row, and of the weights of their results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Number of experts.
    pub experts: usize,
    /// Number of experts that each row chooses.
    pub per_token: usize,
    /// Function that computes scores from logits.
    pub scores: ScoreFunction,
    /// Whether the weights of a row are divided by their sum. Softmax over the chosen logits gives the same.
    pub normalised: bool,
    /// Least divisor of normalised weights.
    pub least_sum: f32,
    /// Factor of the weights.
    pub scale: f32,
    /// Number of equal groups of consecutive experts.
    pub groups: usize,
    /// Number of groups that may contain the experts of one row: the groups whose two largest scores have the
    /// largest sum, as in DeepSeek-V3.
    pub groups_per_token: usize,
    /// Each expert's first slot is a multiple of this: 1, or more if matmuls read several rows together.
    /// Slots between experts are zeros.
    pub alignment: usize,
}

impl Routing {
    /// Returns the number of slots for `rows` rows, whatever the routing.
    #[must_use]
    pub fn slots(&self, rows: usize) -> usize {
        let most = rows * self.per_token + self.experts * (self.alignment - 1);
        if rows == 0 { 0 } else { most / self.alignment * self.alignment }
    }
}

/// Marks which rows of a call are tokens and which are padding.
#[derive(Clone, Debug)]
pub struct TokenRows {
    /// 1 for each row that is a token, else 0: u32 `[rows]`.
    pub mask: Tensor,
    /// Number of tokens over which balancing losses are means, one u32: the tokens of all calls of a step.
    pub count: Tensor,
}

/// Factors of the losses that balance the loads of experts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balance {
    /// Factor of experts · Σ f · P over experts, where f is the share of choices that the expert has, and P
    /// the mean over rows of its normalised scores (Fedus et al., *Switch Transformers*, 2021): 1 for equal
    /// loads. With [`TokenRows`] the losses of all calls add up, each weighted by its tokens.
    pub load: f32,
    /// Factor of the mean over rows of the squared log-sum-exp of the logits (Zoph et al., *ST-MoE*, 2022).
    pub logits: f32,
}

/// The balancing losses of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balancing<'a> {
    /// Factors of the losses.
    pub factors: Balance,
    /// Additional factor of both losses on the device, one f32.
    pub loss_scale: Option<&'a Tensor>,
    /// Rows over which the losses are means; `None`: all rows.
    pub tokens: Option<&'a TokenRows>,
}
