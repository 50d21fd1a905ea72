//! Keys accepted in the files beside a `tokenizer.json`.

use system::readers::{FileKey, Reader, Unlisted};

/// Keys accepted in `tokenizer_config.json`.
pub(crate) const TOKENIZER_CONFIG: Reader = Reader {
    of: "`tokenizer_config.json`",
    keys: &[
        FileKey::known(
            &["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"],
            "special tokens: a text, or an object with `content`; so is any other key in `_token`",
        ),
        FileKey::known(&["extra_special_tokens", "additional_special_tokens"], "further special tokens"),
        FileKey::known(&["added_tokens_decoder"], "tokens to add, by number"),
        FileKey::known(&["tokenizer_class"], "the class, which has special tokens by default"),
        FileKey::known(&["split_special_tokens"], "whether special tokens that a prompt spells out are text"),
        FileKey::known(&["chat_template"], "the chat template, or several with names"),
        FileKey::ignored(
            &["add_bos_token", "add_eos_token"],
            "transformers take the tokens around a text from `tokenizer.json`",
        ),
        FileKey::ignored(
            &[
                "add_prefix_space",
                "do_lower_case",
                "fix_mistral_regex",
                "legacy",
                "sp_model_kwargs",
                "use_default_system_prompt",
            ],
            "`tokenizer.json` says how a text is divided",
        ),
        FileKey::ignored(
            &["clean_up_tokenization_spaces", "spaces_between_special_tokens"],
            "texts are decoded as they are",
        ),
        FileKey::ignored(
            &[
                "max_length",
                "model_max_length",
                "pad_to_multiple_of",
                "pad_token_type_id",
                "padding_side",
                "stride",
                "truncation_side",
                "truncation_strategy",
            ],
            "a run decides the lengths of sequences",
        ),
        FileKey::ignored(
            &[
                "added_tokens_file",
                "auto_map",
                "backend",
                "chat_control_tokens",
                "errors",
                "is_local",
                "local_files_only",
                "model_input_names",
                "model_specific_special_tokens",
                "name_or_path",
                "processor_class",
                "response_schema",
                "response_template",
                "special_tokens_map_file",
                "tokenizer_file",
                "tokenizer_version",
            ],
            "they change no token",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::Counted,
};

/// Keys accepted in `special_tokens_map.json`, which older folders have.
pub(crate) const SPECIAL_TOKENS_MAP: Reader = Reader {
    of: "`special_tokens_map.json`",
    keys: &[
        FileKey::known(
            &["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"],
            "special tokens, before `tokenizer_config.json`'s; read unless that has \
             `added_tokens_decoder`",
        ),
        FileKey::known(&["extra_special_tokens", "additional_special_tokens"], "further special tokens"),
    ],
    shared: &[],
    unlisted: Unlisted::Other(
        "Other keys in `_token` are special tokens too. In `added_tokens.json`, which is read where this file \
         is, each key is the text of a token to add, and its value the number.",
    ),
};

/// Keys accepted in `generation_config.json`.
pub(crate) const GENERATION_CONFIG: Reader = Reader {
    of: "`generation_config.json`",
    keys: &[
        FileKey::known(&["bos_token_id"], "the first token of texts, if the tokenizer names none"),
        FileKey::known(&["eos_token_id"], "one token or several that end texts"),
    ],
    shared: &[],
    unlisted: Unlisted::Other("Other keys are ignored: `plimsoll sample` has options of its own."),
};
