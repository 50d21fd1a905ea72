//! Maps the tensors of a folder to rows of parameters.

use super::experts;
use super::family::{ChangeTensors, FolderFamily};
use super::{latents, linear_attention, names, state_spaces};
use crate::hugging_face::FolderTensor;
use crate::layers::{QkNormSpan, ShortConvolutionSizes};
use crate::models::llama::sizes::LlamaSizes;

/// Prefix of tensor names.
pub(super) const PREFIX: &str = "model.";
/// Name of the embedding table.
pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of the table of embeddings for each layer.
pub(super) const LAYER_EMBEDDINGS: &str = "model.embed_tokens_per_layer.weight";
/// Name of the output head's weight.
pub(super) const HEAD: &str = "lm_head.weight";

/// Returns prefixes of tensors that a folder may have and the model does not use: keys and values of layers
/// that share others.
pub(super) fn unused(sizes: &LlamaSizes) -> Vec<String> {
    let shared = (0..sizes.layers).filter(|layer| sizes.reads_shared(*layer));
    let unused = shared.flat_map(|layer| {
        ["k_proj", "v_proj", "k_norm", "v_norm"].map(|part| format!("model.layers.{layer}.self_attn.{part}."))
    });
    unused.collect()
}

/// Returns all tensors of a model in the family's layout, with `modules`, the tensors of modules that predict
/// later tokens.
pub(super) fn tensors(
    sizes: &LlamaSizes,
    family: &FolderFamily,
    modules: Vec<FolderTensor>,
) -> Vec<FolderTensor> {
    let table = [sizes.vocabulary, sizes.width];
    let mut tensors = vec![same(EMBEDDING, &table)];
    let embedding = sizes.layer_embedding_width;
    if embedding > 0 {
        let columns = sizes.layers * embedding;
        tensors.push(same(LAYER_EMBEDDINGS, &[sizes.vocabulary, columns]));
        tensors.push(same("model.per_layer_model_projection.weight", &[columns, sizes.width]));
        tensors.push(same("model.per_layer_projection_norm.weight", &[embedding]));
    }
    for layer in 0..sizes.layers {
        tensors.extend(layer_tensors(sizes, family, [layer; 2]));
    }
    if sizes.norm_weights {
        tensors.push(same("model.norm.weight", &[sizes.width]));
    }
    if !sizes.tied {
        tensors.push(same(HEAD, &table));
    }
    tensors.extend(modules);
    names::rename(&mut tensors, family.model_type);
    if let Some(change) = family.released {
        change(&mut tensors, sizes);
    }
    tensors
}

/// Returns the lists of tensors that a folder of the family may have instead of `tensors`.
pub(super) fn variants(
    sizes: &LlamaSizes,
    family: &FolderFamily,
    tensors: &[FolderTensor],
) -> Vec<Vec<FolderTensor>> {
    let changed = |change: ChangeTensors| {
        let mut tensors = tensors.to_vec();
        change(&mut tensors, sizes);
        tensors
    };
    family.rewritten.map(changed).into_iter().collect()
}

/// Returns the tensors of layer `index`, which has the options of layer `layer`.
pub(super) fn layer_tensors(
    sizes: &LlamaSizes,
    family: &FolderFamily,
    [index, layer]: [usize; 2],
) -> Vec<FolderTensor> {
    let mut tensors = Vec::new();
    let embedding = sizes.layer_embedding_width;
    let name = format!("model.layers.{index}");
    let norm = |part: &str| same(&format!("{name}.{part}.weight"), &[sizes.width]);
    let branches = sizes.branches(layer);
    let norms = sizes.norm_position_in(layer).all_names(sizes.parallel_branches, branches);
    let norms = norms.filter(|_| sizes.norm_weights);
    tensors.extend(norms.map(norm));
    if let Some(convolution) = sizes.convolution(layer) {
        tensors.extend(short_convolution(&name, sizes.width, convolution));
    }
    if let Some(states) = sizes.state_space(layer) {
        tensors.extend(state_spaces::tensors(&name, sizes.width, states));
    }
    if sizes.delta(layer).is_some() {
        let splits = names::splits_linear(family.model_type);
        tensors.extend(linear_attention::tensors(&name, sizes, splits));
    }
    if sizes.attends(layer) {
        tensors.extend(attention(&name, layer, sizes, family));
    }
    if embedding > 0 {
        let part = |part: &str, shape: &[usize]| same(&format!("{name}.{part}.weight"), shape);
        tensors.push(part("per_layer_input_gate", &[embedding, sizes.width]));
        tensors.push(part("per_layer_projection", &[sizes.width, embedding]));
        tensors.push(part("post_per_layer_input_norm", &[sizes.width]));
    }
    if sizes.layer_factors {
        tensors.push(same(&format!("{name}.layer_scalar"), &[1]));
    }
    let dense = |part: &str, hidden, bias| {
        let layout = (sizes.gated, family.is_fused || names::fuses_gate(family.model_type));
        feed_forward(format!("{name}.{part}"), [sizes.width, hidden], bias, layout)
    };
    match family.experts.filter(|_| sizes.has_experts(layer)) {
        None if !branches[1] => {}
        None => tensors.extend(dense("mlp", sizes.feed_forward_of(layer), sizes.mlp_bias)),
        Some(layout) => {
            tensors.extend(experts::tensors(&name, sizes, (family.model_type, layout)));
            if sizes.shared_expert_width > 0 {
                let mut shared = dense("mlp.shared_experts", sizes.shared_expert_width, false);
                if sizes.shared_expert_gate {
                    rename_shared(&mut shared);
                    let gate = format!("{name}.mlp.shared_expert_gate.weight");
                    shared.push(same(&gate, &[1, sizes.width]));
                }
                tensors.extend(shared);
            }
        }
    }
    tensors
}

/// Renames the shared experts as in folders that also have a gate of them.
fn rename_shared(tensors: &mut [FolderTensor]) {
    let rename = |tensor: &mut FolderTensor| {
        tensor.name = tensor.name.replace(".shared_experts.", ".shared_expert.");
    };
    tensors.iter_mut().for_each(rename);
}

/// Returns a tensor with the same name as its parameter.
pub(super) fn same(name: &str, shape: &[usize]) -> FolderTensor {
    FolderTensor::whole(name.to_owned(), name.to_owned(), shape)
}

/// Returns the tensors of a layer's short convolution.
fn short_convolution(prefix: &str, width: usize, sizes: ShortConvolutionSizes) -> Vec<FolderTensor> {
    let layers: [(&str, &[usize]); 3] =
        [("in_proj", &[3 * width, width]), ("conv", &[width, 1, sizes.taps]), ("out_proj", &[width, width])];
    let tensors = |(layer, shape): (&str, &[usize])| {
        let name = format!("{prefix}.conv.{layer}");
        let bias = sizes.bias.then(|| same(&format!("{name}.bias"), &shape[..1]));
        std::iter::once(same(&format!("{name}.weight"), shape)).chain(bias)
    };
    layers.into_iter().flat_map(tensors).collect()
}

/// Returns the tensors of a layer's attention.
fn attention(prefix: &str, layer: usize, sizes: &LlamaSizes, family: &FolderFamily) -> Vec<FolderTensor> {
    let width = sizes.width;
    let at = |part: &str| format!("{prefix}.{part}");
    let heads = sizes.heads_of(layer);
    let [queries, keys, values] = heads.groups_of_columns();
    let mixed = heads.output_columns();
    let gates = if sizes.attention_gate { mixed } else { 0 };
    let mut tensors = vec![same(&at("self_attn.o_proj.weight"), &[width, mixed])];
    if sizes.output_bias {
        tensors.push(same(&at("self_attn.o_proj.bias"), &[width]));
    }
    if sizes.attention_sinks {
        tensors.push(same(&at("self_attn.sinks"), &[sizes.heads]));
    }
    let attention = Fused {
        prefix: at("self_attn"),
        name: "qkv_proj",
        parts: match sizes.uses_keys_as_values(layer) {
            true => vec![("q_proj", queries + gates), ("k_proj", keys)],
            false => vec![("q_proj", queries + gates), ("k_proj", keys), ("v_proj", values)],
        },
        columns: width,
        bias: sizes.qkv_bias,
    };
    if sizes.reads_shared(layer) {
        let parts = vec![("q_proj", queries)];
        tensors.extend(Fused { name: "q_proj", parts, ..attention }.tensors(true));
        if sizes.qk_norm && sizes.norm_weights {
            tensors.push(same(&at("self_attn.q_norm.weight"), &[heads.width]));
        }
        return tensors;
    }
    tensors.extend(match family.has_latents() {
        true => latents::qkv(&at("self_attn"), sizes),
        false => attention.tensors(family.is_fused),
    });
    if sizes.qk_norm && sizes.norm_weights {
        let columns = match sizes.qk_norm_span {
            QkNormSpan::Head => [heads.width; 2],
            QkNormSpan::All => [queries, keys],
        };
        let weight = |part: &str| at(&format!("self_attn.{part}.weight"));
        let norm = |((ours, theirs), columns)| FolderTensor::whole(weight(theirs), weight(ours), &[columns]);
        tensors.extend(["q_norm", "k_norm"].into_iter().zip(family.qk_norms).zip(columns).map(norm));
    }
    tensors
}

/// Returns the tensors of feed-forward layers, or of shared experts.
fn feed_forward(
    prefix: String,
    [width, hidden]: [usize; 2],
    bias: bool,
    (is_gated, is_fused): (bool, bool),
) -> Vec<FolderTensor> {
    let mut tensors = vec![same(&format!("{prefix}.down_proj.weight"), &[width, hidden])];
    if bias {
        tensors.push(same(&format!("{prefix}.down_proj.bias"), &[width]));
    }
    if !is_gated {
        let plain = Fused { prefix, name: "up_proj", parts: vec![("up_proj", hidden)], columns: width, bias };
        tensors.extend(plain.tensors(true));
        return tensors;
    }
    let parts = vec![("gate_proj", hidden), ("up_proj", hidden)];
    let gated = Fused { prefix, name: "gate_up_proj", parts, columns: width, bias };
    tensors.extend(gated.tensors(is_fused));
    tensors
}

/// A linear layer that fuses the rows of several modules.
struct Fused {
    prefix: String,
    name: &'static str,
    /// Names and numbers of rows of the modules.
    parts: Vec<(&'static str, usize)>,
    columns: usize,
    bias: bool,
}

impl Fused {
    /// Returns the weights and biases: one tensor each if the folder fuses the modules too, otherwise one per
    /// module.
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
