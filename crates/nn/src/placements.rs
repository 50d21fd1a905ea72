//! The placements of a family's parameters on ranks that share its layers.
//!
//! The one idea: a family says once, in a table, how shards divide each layer. Initial values, gradients,
//! state, checkpoints and slices of other formats follow from it, and so does what a layer does with its
//! input and its result.

/// How the shards of a layer divide its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParallelStyle {
    /// By outputs, the first dimension. Of a fused layer each of these groups of outputs is divided by
    /// itself, so that every shard has some of all; without groups, all outputs are one. Every shard takes
    /// the layer's whole input.
    Column(Vec<usize>),
    /// By inputs, the second dimension of a matrix. The layer's result is the sum over shards, to which its
    /// bias is added once.
    Row,
}

/// The styles of a family's layers, by the names of their parameters.
#[derive(Clone, Debug, Default)]
pub struct PlacementTable {
    rows: Vec<(&'static str, ParallelStyle)>,
    shards_rows: bool,
}

impl PlacementTable {
    /// Returns an empty table: every rank has all parameters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer whose outputs are divided, each of `groups` by itself. `name` is that of a linear layer,
    /// without `.weight`, or of a table or vector; `*` stands for any characters.
    #[must_use]
    pub fn column(mut self, name: &'static str, groups: &[usize]) -> Self {
        self.rows.push((name, ParallelStyle::Column(groups.to_vec())));
        self
    }

    /// Adds a layer whose inputs are divided.
    #[must_use]
    pub fn row(mut self, name: &'static str) -> Self {
        self.rows.push((name, ParallelStyle::Row));
        self
    }

    /// Returns the same table of a family whose layers compute the rows between sharded layers in shards too,
    /// each rank its own. All of its weights between them are made for that
    /// ([`Parameters::over_rows`](crate::Parameters::over_rows)).
    #[must_use]
    pub fn with_sharded_rows(self) -> Self {
        PlacementTable { shards_rows: true, ..self }
    }

    /// Returns whether ranks have shards of the rows between sharded layers.
    #[must_use]
    pub fn shards_rows(&self) -> bool {
        self.shards_rows
    }

    /// Returns whether no layer is divided.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The style of the layer `name`: that of the first row that names it; `None` for one that ranks have as
    /// a whole.
    #[must_use]
    pub fn style(&self, name: &str) -> Option<&ParallelStyle> {
        self.rows.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, style)| style)
    }
}

/// Returns whether `name` is `pattern`, in which `*` stands for any characters.
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
