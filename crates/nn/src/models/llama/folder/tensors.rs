//! The tensors of a folder, and the rows of parameters that they hold.

use super::family::FolderFamily;
use crate::hugging_face::FolderTensor;
use crate::layers::QkNormSpan;
use crate::models::llama::sizes::LlamaSizes;

/// The table of embeddings.
pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";
/// The weight of the output head.
pub(super) const HEAD: &str = "lm_head.weight";

/// All tensors of a model in the family's layout.
pub(super) fn tensors(sizes: &LlamaSizes, family: &FolderFamily) -> Vec<FolderTensor> {
    let table = [sizes.vocabulary, sizes.width];
    let mut tensors = vec![same(EMBEDDING, &table)];
    for layer in 0..sizes.layers {
        tensors.extend(block(&format!("model.layers.{layer}"), sizes, family));
    }
    tensors.push(same("model.norm.weight", &[sizes.width]));
    if !sizes.tied {
        tensors.push(same(HEAD, &table));
    }
    tensors
}

/// A tensor with the same name as its parameter.
fn same(name: &str, shape: &[usize]) -> FolderTensor {
    FolderTensor::whole(name.to_owned(), name.to_owned(), shape)
}

fn block(prefix: &str, sizes: &LlamaSizes, family: &FolderFamily) -> Vec<FolderTensor> {
    let LlamaSizes { width, feed_forward, .. } = *sizes;
    let at = |part: &str| format!("{prefix}.{part}");
    let [queries, keys, values] = sizes.attention_heads().groups_of_columns();
    let mixed = sizes.attention_heads().output_columns();
    let norm = |name: &str| same(&at(&format!("{name}.weight")), &[width]);
    let mut tensors: Vec<_> = sizes.norm_position.all_names().map(norm).collect();
    tensors.extend([
        same(&at("self_attn.o_proj.weight"), &[width, mixed]),
        same(&at("mlp.down_proj.weight"), &[width, feed_forward]),
    ]);
    let biases = [("self_attn.o_proj.bias", sizes.output_bias), ("mlp.down_proj.bias", sizes.mlp_bias)];
    let biases = biases.into_iter().filter(|(_, has)| *has);
    tensors.extend(biases.map(|(name, _)| same(&at(name), &[width])));
    let attention = Fused {
        prefix: at("self_attn"),
        name: "qkv_proj",
        parts: vec![("q_proj", queries), ("k_proj", keys), ("v_proj", values)],
        columns: width,
        bias: sizes.qkv_bias,
    };
    tensors.extend(attention.tensors(family.is_fused));
    let gated = Fused {
        prefix: at("mlp"),
        name: "gate_up_proj",
        parts: vec![("gate_proj", feed_forward), ("up_proj", feed_forward)],
        columns: width,
        bias: sizes.mlp_bias,
    };
    tensors.extend(gated.tensors(family.is_fused));
    if sizes.qk_norm {
        let columns = match sizes.qk_norm_span {
            QkNormSpan::Head => [sizes.head_width; 2],
            QkNormSpan::All => [queries, keys],
        };
        let norm = |(part, columns)| same(&at(&format!("self_attn.{part}.weight")), &[columns]);
        tensors.extend(["q_norm", "k_norm"].into_iter().zip(columns).map(norm));
    }
    tensors
}

/// A linear layer whose rows are those of several modules.
struct Fused {
    prefix: String,
    name: &'static str,
    /// The modules and their rows.
    parts: Vec<(&'static str, usize)>,
    columns: usize,
    bias: bool,
}

impl Fused {
    /// The weights and biases: one tensor each if the folder fuses them too, else those of the modules.
    fn tensors(&self, is_fused: bool) -> Vec<FolderTensor> {
        let kinds = [Some(("weight", Some(self.columns))), self.bias.then_some(("bias", None))];
        kinds.into_iter().flatten().flat_map(|(kind, columns)| self.kind(kind, columns, is_fused)).collect()
    }

    fn kind(&self, kind: &str, columns: Option<usize>, is_fused: bool) -> Vec<FolderTensor> {
        let parameter = format!("{}.{}.{kind}", self.prefix, self.name);
        let shape = |rows: usize| std::iter::once(rows).chain(columns).collect::<Vec<_>>();
        if is_fused {
            let rows = self.parts.iter().map(|(_, rows)| rows).sum();
            return vec![same(&parameter, &shape(rows))];
        }
        let mut first_row = 0;
        let part = |(name, rows): &(&str, usize)| {
            let name = format!("{}.{name}.{kind}", self.prefix);
            let tensor =
                FolderTensor { first_row, ..FolderTensor::whole(name, parameter.clone(), &shape(*rows)) };
            first_row += rows;
            tensor
        };
        self.parts.iter().map(part).collect()
    }
}
