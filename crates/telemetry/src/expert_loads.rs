//! Tokens that each expert computes in a step: in `metrics.jsonl`, TensorBoard and the report.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Key in a line of `metrics.jsonl`; the value is an object from layer number to token counts.
pub const EXPERT_LOADS: &str = "expert_loads";

/// The loads of one layer's experts in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLoads {
    /// Number of the layer.
    pub layer: usize,
    /// Number of tokens that each expert computed, over all ranks.
    pub tokens: Vec<u32>,
}

impl ExpertLoads {
    /// Returns the largest load divided by the mean load: 1 if all are equal, 0 without tokens.
    #[must_use]
    pub fn imbalance(&self) -> f64 {
        let most = self.tokens.iter().copied().max().unwrap_or(0);
        self.of_mean(most)
    }

    /// Returns `tokens` divided by the layer's mean load; 0 without tokens.
    #[must_use]
    pub fn of_mean(&self, tokens: u32) -> f64 {
        let sum: u64 = self.tokens.iter().copied().map(u64::from).sum();
        if sum == 0 { 0.0 } else { f64::from(tokens) * self.tokens.len() as f64 / sum as f64 }
    }

    /// Returns the loads of all layers as the value of [`EXPERT_LOADS`].
    #[must_use]
    pub fn to_json(loads: &[ExpertLoads]) -> Value {
        let entry = |loads: &ExpertLoads| (loads.layer.to_string(), loads.tokens.clone().into());
        Value::Object(loads.iter().map(entry).collect::<Map<_, _>>())
    }

    /// Parses the value of [`EXPERT_LOADS`], sorted by layer; skips entries that do not parse.
    #[must_use]
    pub fn of_json(value: &Value) -> Vec<ExpertLoads> {
        let of_layer = |(layer, tokens): (&String, &Value)| {
            let tokens = serde_json::from_value(tokens.clone()).ok()?;
            Some(ExpertLoads { layer: layer.parse().ok()?, tokens })
        };
        let mut loads: Vec<_> = value.as_object().into_iter().flatten().filter_map(of_layer).collect();
        loads.sort_by_key(|loads| loads.layer);
        loads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_pass_through_json_and_compare_with_their_mean() {
        let loads_in = |layer, tokens: &[u32]| ExpertLoads { layer, tokens: tokens.to_vec() };
        let loads = [loads_in(2, &[1, 3, 0, 0]), loads_in(10, &[5, 5])];
        assert_eq!(ExpertLoads::of_json(&ExpertLoads::to_json(&loads)), loads);
        assert_eq!((loads[0].imbalance(), loads[1].imbalance()), (3.0, 1.0));
        assert_eq!((loads[0].of_mean(1), loads_in(0, &[0, 0]).imbalance()), (1.0, 0.0));
        assert_eq!(ExpertLoads::of_json(&Value::Null), []);
    }
}
