//! Families of Hugging Face folders that are not supported: the nearest that is, and what it lacks.

/// Unsupported values of `model_type`, the nearest supported one, and the features missing there.
const UNSUPPORTED: &[(&[&str], &str, &str)] = &[
    (&["apertus"], "llama", "the activation xIELU without a gate"),
    (&["arcee", "nemotron"], "llama", "a squared ReLU without a gate"),
    (
        &["bert", "deberta", "deberta-v2", "distilbert", "modernbert", "roberta", "xlm-roberta"],
        "gpt2",
        "attention in both directions",
    ),
    (&["bloom", "mpt"], "gpt2", "ALiBi"),
    (&["falcon", "gptj", "phi"], "llama", "LayerNorm, and branches side by side"),
    (&["gpt_neox", "stablelm"], "llama", "LayerNorm"),
    (&["gpt_bigcode", "gpt_neo"], "gpt2", "its kinds of attention"),
    (&["cohere"], "cohere2", "rotation in layers without a window"),
    (&["dbrx", "phimoe"], "mixtral", "LayerNorm and its router"),
    (&["deepseek_v2"], "deepseek_v3", "softmax scores of groups of experts"),
    (&["deepseek_v32", "glm_moe_dsa"], "deepseek_v3", "attention to the tokens that an indexer chooses"),
    (&["ernie4_5_vl_moe"], "ernie4_5_moe", "images, and experts of their own for them"),
    (&["exaone_moe"], "exaone4", "experts"),
    (&["gemma3n", "gemma3n_text"], "gemma4_text", "several residual streams"),
    (&["granitemoe", "granitemoeshared"], "granite", "experts"),
    (&["hunyuan_v1_moe"], "hunyuan_v1_dense", "experts"),
    (&["jamba", "mamba", "mamba2", "rwkv", "xlstm", "zamba", "zamba2"], "llama", "recurrent layers"),
    (&["llama4", "llama4_text"], "llama", "attention in chunks, and weights on the inputs of experts"),
    (&["llava", "mllama"], "llama", "images"),
    (&["longcat_flash"], "deepseek_v3", "two attentions in a layer, and experts that compute nothing"),
    (&["minimax"], "minimax_m2", "layers of linear attention"),
    (&["pixtral"], "mistral", "images"),
    (&["olmo"], "olmo2", "LayerNorm without weights"),
    (&["opt"], "gpt2", "a ReLU, and positions that begin at 2"),
    (&["qwen2_moe"], "qwen3_moe", "a gate of the shared expert"),
    (&["qwen2_vl", "qwen2_5_vl"], "qwen2", "images, and positions of several axes"),
    (&["qwen3_vl"], "qwen3", "images, and positions of several axes"),
    (&["qwen3_vl_moe"], "qwen3_moe", "images, and positions of several axes"),
    (&["starcoder2"], "mistral", "LayerNorm, and feed-forward layers without a gate"),
    (&["bart", "t5", "umt5", "whisper"], "gpt2", "an encoder"),
];

/// Least number of equal first characters of two names that are near each other.
const ALIKE: usize = 3;

/// Returns a clause about the family among `supported` that is nearest to `model_type`, and what it lacks;
/// empty if none is near.
#[must_use]
pub fn nearest_family(model_type: &str, supported: &[&str]) -> String {
    let mut listed =
        UNSUPPORTED.iter().filter(|(names, near, _)| names.contains(&model_type) && supported.contains(near));
    if let Some((_, near, lacks)) = listed.next() {
        return format!("; the nearest that is, \"{near}\", lacks {lacks}");
    }
    let alike = |name: &str| name.bytes().zip(model_type.bytes()).take_while(|(a, b)| a == b).count();
    let near = supported.iter().rev().max_by_key(|name| alike(name));
    match near.filter(|name| alike(name) >= ALIKE) {
        Some(near) => format!("; the nearest by name that is, \"{near}\", may compute something else"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest_family;

    #[test]
    fn near_families_are_named_with_what_they_lack() {
        let supported = ["gpt2", "llama", "qwen3", "qwen3_moe"];
        for (name, expected) in [
            ("bloom", "; the nearest that is, \"gpt2\", lacks ALiBi"),
            ("qwen3_vl", "; the nearest that is, \"qwen3\", lacks images, and positions of several axes"),
            ("qwen3_omni", "; the nearest by name that is, \"qwen3_moe\", may compute something else"),
            ("qwen4", "; the nearest by name that is, \"qwen3\", may compute something else"),
            // The family that is near is not supported.
            ("olmo", ""),
            ("x", ""),
        ] {
            assert_eq!(nearest_family(name, &supported), expected, "{name}");
        }
    }
}
