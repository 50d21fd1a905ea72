//! The keys of conversation and pair records, each accepted, ignored or refused.

use system::readers::{FileKey, Reader, Unlisted};

/// Values of a `weight` key that have no effect, because they weight records equally.
const WHOLE: &[&str] = &["1", "true", "[]"];
/// Values that mean an absent text or list.
const NOTHING: &[&str] = &["\"\"", "[]"];

/// The keys accepted in every conversation or pair record.
pub(crate) const RECORD: Reader = Reader {
    of: "Every record of conversations or preferences",
    keys: &[
        FileKey::known(
            &["tools"],
            "a list of functions, or its JSON as a text, which the chat template takes",
        ),
        FileKey::known(
            &["chat_template_kwargs"],
            "an object of further variables of the chat template, as TRL passes it",
        ),
        FileKey::ignored(
            &["parallel_tool_calls", "tool_choice"],
            "they restrict what OpenAI's models generate",
        ),
        FileKey::refused(
            &["functions"],
            &["[]"],
            "write them as \"tools\": [{\"type\": \"function\", \"function\": …}]",
        ),
        FileKey::refused(
            &["image", "images", "video", "videos", "audio", "audios"],
            NOTHING,
            "only texts are learnt",
        ),
        FileKey::refused(
            &["system_prompt", "system_message"],
            NOTHING,
            "write it as \"system\", or as a first message of the role \"system\"",
        ),
        FileKey::refused(&["documents"], NOTHING, "chat templates are called without documents"),
        FileKey::refused(
            &["input_ids", "labels", "completion_mask", "assistant_masks", "attention_mask", "position_ids"],
            &["[]"],
            "tokens of another program are not read: leave the key out, and the record's texts are tokenized",
        ),
        FileKey::refused(
            &["weight", "weights", "sample_weight", "loss_weight", "loss_scale"],
            WHOLE,
            "all records weigh the same: leave the record out, or write \"weight\": 0 in messages that are not \
             to be learnt",
        ),
        FileKey::refused(
            &[
                "train",
                "training",
                "trainable",
                "train_on_turn",
                "loss",
                "loss_mask",
                "mask",
                "masks",
                "masked",
            ],
            WHOLE,
            "masks belong to messages: write \"weight\": 0 in those that are not to be learnt",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::Other("Each format below says what happens to other keys."),
};

/// The keys accepted in a record of messages.
pub(crate) const MESSAGES: Reader = Reader {
    of: "A conversation of format messages",
    keys: &[
        FileKey::known(
            &["messages", "conversations", "conversation"],
            "the list of messages; one of these keys",
        ),
        FileKey::known(&["system"], "a text that is put before the messages as one of the system"),
        FileKey::refused(
            &["chosen", "rejected"],
            NOTHING,
            "these are pairs of answers, of data.kind = \"preference\"",
        ),
    ],
    shared: &[&RECORD],
    unlisted: Unlisted::Counted,
};

pub(crate) const MESSAGE: Reader = Reader {
    of: "A message",
    keys: &[
        FileKey::known(&["role"], "a text, which the chat template takes"),
        FileKey::known(
            &["content"],
            "a text, or a list of texts (`{\"type\": \"text\", \"text\": …}`), which are joined; absent only \
             beside `tool_calls`",
        ),
        FileKey::known(
            &["weight", "train", "training", "trainable", "loss", "loss_mask"],
            "1 or true: the answer is learnt, as without the key; 0 or false: it is not",
        ),
        FileKey::known(&["masked"], "1 or true: the answer is not learnt; 0 or false: it is"),
        FileKey::known(
            &["tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning", "thinking"],
            "the chat template takes them",
        ),
        FileKey::refused(
            &["mask"],
            &[],
            "in some programs it marks what is learnt and in others what is not: write \"weight\": 0 or 1",
        ),
        FileKey::refused(
            &[
                "weights",
                "sample_weight",
                "loss_weight",
                "loss_scale",
                "train_on",
                "train_on_turn",
                "learn",
                "supervised",
                "compute_loss",
            ],
            WHOLE,
            "write \"weight\": 0 or 1",
        ),
        FileKey::refused(
            &["masks", "is_masked", "no_loss", "skip_loss", "ignore_loss", "ignore"],
            &["0", "false", "[]"],
            "write \"weight\": 0 or 1",
        ),
        FileKey::refused(
            &["training_detail", "train_detail"],
            &["[]"],
            "a message is learnt whole or not: split it, and write \"weight\": 0 or 1",
        ),
        FileKey::refused(
            &["function_call"],
            &[],
            "write it as \"tool_calls\": [{\"type\": \"function\", \"function\": …}]",
        ),
        FileKey::refused(&["refusal"], &["\"\""], "write its text as \"content\""),
        FileKey::refused(
            &["image", "images", "video", "videos", "audio", "audios"],
            NOTHING,
            "only texts are learnt",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::Other(
        "The chat template takes other keys, as in transformers. Those that its text does not name are counted in \
         one line of the log, and so are `tools` and `chat_template_kwargs`.",
    ),
};

/// The keys accepted in a record of ShareGPT's format.
pub(crate) const SHARE_GPT: Reader = Reader {
    of: "A conversation of format sharegpt",
    keys: MESSAGES.keys,
    shared: &[&RECORD],
    unlisted: Unlisted::Counted,
};

/// The keys accepted in a message of ShareGPT's format.
pub(crate) const TURN: Reader = Reader {
    of: "A message of format sharegpt",
    keys: &[
        FileKey::known(
            &["from"],
            "`human`, `user`; `gpt`, `assistant`, `chatgpt`, `model`, `bot`, `bing`, `bard`; `system`; `tool`, \
             `function`, `observation`; `function_call`, an answer whose `value` is the JSON of a call",
        ),
        FileKey::known(&["value"], "the text"),
        FileKey::known(
            &["weight", "train", "training", "trainable", "loss", "loss_mask", "masked"],
            "as in *A message*",
        ),
        FileKey::known(&["role", "content"], "the same as `from` and `value`, as some programs write both"),
    ],
    shared: &[&MESSAGE],
    unlisted: Unlisted::Counted,
};

/// The keys accepted in a record of Alpaca's format.
pub(crate) const ALPACA: Reader = Reader {
    of: "A conversation of format alpaca or alpaca_prompt",
    keys: &[
        FileKey::known(&["instruction"], "the text of the question"),
        FileKey::known(&["input"], "a text that is put after it, behind a blank line"),
        FileKey::known(&["output"], "the answer, which is learnt"),
        FileKey::known(
            &["system"],
            "a text of the system; of `alpaca_prompt` instead of the first sentences",
        ),
        FileKey::known(
            &["history"],
            "a list of earlier questions and answers, `[[question, answer], …]`, which are learnt too; not of \
             `alpaca_prompt`",
        ),
        FileKey::ignored(&["text"], "the prompt and the answer once more, as in Stanford's file"),
        FileKey::refused(
            &["response", "answer", "completion", "target"],
            NOTHING,
            "the answer's key is \"output\"",
        ),
        FileKey::refused(&["context"], NOTHING, "the key of what follows the instruction is \"input\""),
        FileKey::refused(
            &["question", "query"],
            NOTHING,
            "the question's keys are \"instruction\", and \"input\" for what follows it",
        ),
        FileKey::refused(
            &["chosen", "rejected"],
            NOTHING,
            "these are pairs of answers, of data.kind = \"preference\"",
        ),
    ],
    shared: &[&RECORD],
    unlisted: Unlisted::Counted,
};

/// The keys accepted in a record of prompt and completion.
pub(crate) const COMPLETION: Reader = Reader {
    of: "A conversation of format completion",
    keys: &[
        FileKey::known(&["prompt"], "a text, or a list of messages, which are not learnt"),
        FileKey::known(
            &["completion"],
            "of the same type, learnt as a whole; a text ends with the tokenizer's token for that",
        ),
        FileKey::refused(&["system"], NOTHING, "write it at the start of \"prompt\""),
        FileKey::refused(&["suffix"], NOTHING, "no text follows a completion"),
        FileKey::refused(
            &["label"],
            &[],
            "in files of KTO it marks bad answers, which would be learnt: leave these out, and the key too",
        ),
        FileKey::refused(
            &["chosen", "rejected"],
            NOTHING,
            "these are pairs of answers, of data.kind = \"preference\"",
        ),
    ],
    shared: &[&RECORD],
    unlisted: Unlisted::Counted,
};

/// The keys accepted in a preference pair.
pub(crate) const PAIR: Reader = Reader {
    of: "A pair of answers",
    keys: &[
        FileKey::known(&["chosen", "rejected"], "the answers, both texts or both lists of messages"),
        FileKey::known(&["prompt"], "their prompt; without it, what both begin with"),
        FileKey::ignored(&["messages"], "the chosen conversation once more, as in UltraFeedback's file"),
        FileKey::ignored(
            &["score_chosen", "score_rejected", "chosen_score", "rejected_score", "margin"],
            "no loss here weighs a pair by its scores",
        ),
        FileKey::refused(
            &["question", "instruction", "input", "query", "history", "context", "system", "conversations"],
            NOTHING,
            "what precedes the answers is \"prompt\", a text or a list of messages",
        ),
        FileKey::refused(
            &["ref_chosen_logps", "ref_rejected_logps", "reference_chosen_logps", "reference_rejected_logps"],
            &[],
            "the reference is the model from which the run starts: leave the key out",
        ),
        FileKey::refused(&["label"], &["true"], "\"chosen\" and \"rejected\" say which answer is preferred"),
    ],
    shared: &[&RECORD],
    unlisted: Unlisted::Counted,
};
