//! How a family's parameters are sharded over tensor ranks.
//!
//! The one idea: a family describes once, in a table, how shards divide each layer. Initial values,
//! gradients, state, checkpoints and slices of other formats follow from the table, and so do a layer's
//! communication of its input and its result.

use std::borrow::Cow;

/// How a layer's parameters are sharded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParallelStyle {
    /// Column-parallel: the outputs, the first dimension, are divided. In a fused layer, each of these groups
    /// of outputs is divided separately, so that every shard has a part of each group; an empty list means
    /// one group. Every shard takes the layer's whole input.
    Column(Vec<usize>),
    /// Row-parallel: the inputs, a matrix's second dimension, are divided. The layer's result is the sum over
    /// shards, to which its bias is added once.
    Row,
}

/// The sharding styles of a family's layers, by name.
#[derive(Clone, Debug, Default)]
pub struct PlacementTable {
    rows: Vec<(Cow<'static, str>, ParallelStyle)>,
    shards_rows: bool,
}

impl PlacementTable {
    /// Creates an empty table: every rank has all parameters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column-parallel layer, whose `groups` of outputs are divided separately. `name` is the name of
    /// a linear layer, without `.weight`, or of a table or vector; `*` matches any characters.
    #[must_use]
    pub fn column(mut self, name: impl Into<Cow<'static, str>>, groups: &[usize]) -> Self {
        self.rows.push((name.into(), ParallelStyle::Column(groups.to_vec())));
        self
    }

    /// Adds a row-parallel layer.
    #[must_use]
    pub fn row(mut self, name: &'static str) -> Self {
        self.rows.push((name.into(), ParallelStyle::Row));
        self
    }

    /// Also shards the rows between sharded layers over ranks. All weights of the layers there must be
    /// created by [`Parameters::over_rows`](crate::Parameters::over_rows).
    #[must_use]
    pub fn with_sharded_rows(self) -> Self {
        PlacementTable { shards_rows: true, ..self }
    }

    /// Returns whether rows between sharded layers are sharded too.
    #[must_use]
    pub fn shards_rows(&self) -> bool {
        self.shards_rows
    }

    /// Returns whether no layer is divided.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the style of the layer `name` from the first matching row; `None` for a layer that is not
    /// sharded.
    #[must_use]
    pub fn style(&self, name: &str) -> Option<&ParallelStyle> {
        self.rows.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, style)| style)
    }
}

/// Returns whether `name` matches `pattern`, in which `*` matches any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    (0..=name.len()).any(|end| name.is_char_boundary(end) && matches(rest, &name[end..]))
}

#[cfg(test)]
mod tests {
    use super::{ParallelStyle, PlacementTable, matches};

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, expected) in [
            ("h.*.attn_qkv", "h.11.attn_qkv", true),
            ("h.*.attn_qkv", "h.11.attn_qkv.weight", false),
            ("*.down_proj", "model.layers.0.mlp.down_proj", true),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_row_decides() {
        let table = PlacementTable::new().row("*.shared.down").column("*.down", &[]);
        assert_eq!(table.style("0.shared.down"), Some(&ParallelStyle::Row));
        assert_eq!(table.style("0.down"), Some(&ParallelStyle::Column(Vec::new())));
        assert_eq!(table.style("norm"), None);
    }
}
