//! Default special tokens of tokenizer classes in transformers.

/// The tokenizer class that transformers uses for a `model_type` if no file names one.
const CLASSES: &[(&str, &[&str])] = &[
    ("CodeLlamaTokenizer", &["code_llama"]),
    ("CohereTokenizer", &["cohere", "cohere2"]),
    ("GPT2Tokenizer", &["codegen", "dbrx", "gpt2", "gpt_neo", "gptj", "jais2", "opt", "phi", "starcoder2"]),
    (
        "GPTNeoXTokenizer",
        &["falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv", "xlstm"],
    ),
    (
        "GemmaTokenizer",
        &["gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "recurrent_gemma"],
    ),
    ("Qwen2Tokenizer", &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"]),
    ("Qwen3_5Tokenizer", &["qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"]),
];

const TOKENS: &[(&str, &[(&str, &str)])] = &[
    ("CodeLlamaTokenizer", LLAMA),
    (
        "CohereTokenizer",
        &[
            ("bos_token", "<BOS_TOKEN>"),
            ("eos_token", "<|END_OF_TURN_TOKEN|>"),
            ("unk_token", "<UNK>"),
            ("pad_token", "<PAD>"),
            ("cls_token", "<CLS>"),
            ("sep_token", "<SEP>"),
            ("mask_token", "<MASK_TOKEN>"),
        ],
    ),
    ("GPT2Tokenizer", END_OF_TEXT),
    (
        "GPTNeoXTokenizer",
        &[
            ("bos_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("unk_token", "<|endoftext|>"),
            ("pad_token", "<|padding|>"),
        ],
    ),
    (
        "GemmaTokenizer",
        &[
            ("bos_token", "<bos>"),
            ("eos_token", "<eos>"),
            ("unk_token", "<unk>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ],
    ),
    ("LlamaTokenizer", LLAMA),
    ("Qwen2Tokenizer", QWEN),
    ("Qwen3_5Tokenizer", QWEN),
    ("WhisperTokenizer", END_OF_TEXT),
];

const LLAMA: &[(&str, &str)] = &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")];
const END_OF_TEXT: &[(&str, &str)] =
    &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")];
const QWEN: &[(&str, &str)] =
    &[("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")];

/// Returns the tokenizer class for a `model_type`.
pub(super) fn class_of(model_type: &str) -> Option<&'static str> {
    CLASSES.iter().find(|(_, types)| types.contains(&model_type)).map(|(class, _)| *class)
}

/// Returns the default special tokens of a class by name; empty if it has none. Accepts the class's name with
/// `Fast` at the end.
pub(super) fn tokens_of(class: &str) -> &'static [(&'static str, &'static str)] {
    let name = class.strip_suffix("Fast").unwrap_or(class);
    TOKENS.iter().find(|(class, _)| *class == name).map_or(&[], |(_, tokens)| *tokens)
}
