"""Scores 30 questions of multiple choice by lm-evaluation-harness 0.4.13, with a model of Llama's kind in numpy and two
tokenizers, which it trains: lm_eval_scores.py MODEL OUT. It wrote the files beside it."""

import json
import os
import sys

import numpy as np
from lm_eval import evaluator
from lm_eval.api.model import TemplateLM
from lm_eval.api.task import ConfigurableTask
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

CONTEXT = 48


class Llama:
    """The logits of a folder's model, in float64."""

    def __init__(self, folder):
        self.config = json.load(open(os.path.join(folder, "config.json")))
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        self.w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def rope(self, length):
        config, scaling = self.config, self.config["rope_scaling"]
        width = config["head_dim"]
        rates = config["rope_theta"] ** -(np.arange(0, width, 2) / width)
        old, low, high = scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"]
        waves = 2 * np.pi / rates
        smooth = (old / waves - low) / (high - low)
        middle = (1 - smooth) * rates / scaling["factor"] + smooth * rates
        rates = np.where(waves > old / low, rates / scaling["factor"], np.where(waves < old / high, rates, middle))
        angles = np.arange(length)[:, None] * rates
        return np.concatenate([np.cos(angles)] * 2, -1), np.concatenate([np.sin(angles)] * 2, -1)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.w[name]

    def logits(self, tokens):
        config, w = self.config, self.w
        heads, shared, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        x = w["model.embed_tokens.weight"][tokens]
        cos, sin = self.rope(len(tokens))
        turned = lambda a: a * cos + np.concatenate([-a[..., width // 2:], a[..., :width // 2]], -1) * sin
        for layer in range(config["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")
            split = lambda name, n: (h @ w[p + f"self_attn.{name}.weight"].T).reshape(len(tokens), n, width).swapaxes(0, 1)
            q, k, v = turned(split("q_proj", heads)), turned(split("k_proj", shared)), split("v_proj", shared)
            k, v = (np.repeat(one, heads // shared, 0) for one in (k, v))
            scores = q @ k.swapaxes(1, 2) / np.sqrt(width) + np.triu(np.full((len(tokens),) * 2, -np.inf), 1)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ v
            x = x + mixed.swapaxes(0, 1).reshape(len(tokens), -1) @ w[p + "self_attn.o_proj.weight"].T
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate = h @ w[p + "mlp.gate_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
        return self.norm(x, "model.norm.weight") @ w["lm_head.weight"].T


class Scored(TemplateLM):
    """The parts of lm-evaluation-harness's `HFLM` that make tokens; it needs PyTorch itself."""

    backend = "causal"
    max_length = CONTEXT

    def __init__(self, model, tokenizer):
        super().__init__()
        self.model, self.tokenizer, self.seen = model, tokenizer, []

    @property
    def eot_token_id(self):
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self):
        bos = self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id if bos is None else bos

    def tok_encode(self, string, add_special_tokens=None, **_):
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        return self.tokenizer.encode(string, **({} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}))

    def _loglikelihood_tokens(self, requests, **_):
        results = []
        for _, context, ending in requests:
            assert context and 0 < len(ending) <= self.max_length
            self.seen.append([context, ending])
            tokens = (context + ending)[-(self.max_length + 1):]
            logits = self.model.logits(tokens[:-1])[-len(ending):]
            top = logits.max(-1, keepdims=True)
            logits = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
            results.append((logits[np.arange(len(ending)), ending].sum(), bool((logits.argmax(-1) == ending).all())))
        return results

    def loglikelihood_rolling(self, *_, **__):
        raise NotImplementedError

    def generate_until(self, *_, **__):
        raise NotImplementedError


QUESTIONS = [
    ("The sky is", ["blue", "flat", "red", "a fish"], 0),
    ("The sea is ", ["deep", "blue as the sky", "wooden"], 1),
    ("Two and two are   ", ["four", "five", "a number of things"], 0),
    ("A ship sails on\n", ["the sea", "the sky"], 0),
    ("", ["blue", "the sea is deep", "four"], 2),
    (" \n The ship ", ["is on the sky", "sails"], 1),
    ("q", ["yes", "\u043d\u0435\u0442"], 0),
    ("q", ["\u0434\u0430", "no"], 1),
    ("q", ["no thanks", "\u0e44\u0e21\u0e48\u0e40\u0e2d\u0e32"], 0),
    ("q", ["\u306f\u3044", "maybe"], 1),
    ("The answer is (", ["A", "B", "C", "D"], "B"),
    ("Answer:", ["A", "B", "C", "D"], "D"),
    ("Answer:", ["the sea", "the sky", "a ship"], "C"),
    ("The ship's name is", ["the \"Sky\"", "Anna-Maria III.", "42"], 2),
    ("x =", ["1", "10", "100", "1000"], 1),
    ("<s>The sea", ["is deep", "is four"], 0),
    ("The captain said: \u201c", ["No!\u201d", "Sail on!\u201d", "\u2026\u201d"], 1),
    ("\u4f60\u597d\uff0c", ["\u4e16\u754c", "world", "\u4f60\u597d"], 0),
    ("caf\u00e9", ["au lait", "cre\u0300me", "\U0001f600"], 2),
    ("1 2 3 4 5", ["6", "7 8", "nine"], 0),
    ("The sky is blue and the sea is deep. " * 6 + "The ship is", ["on the sea", "in the sky", "four"], 0),
    ("A number of things are known of the sea and of ships. " * 5, ["It is deep.", "It is red."], 1),
    ("four five four five " * 9, ["four", "five"], 0),
    ("The ship is on", ["the sea and the sea is deep and the sky is blue", "the sky", "things"], 0),
    ("It is", ["so", "not so", "so and not so"], "a"),
    ("Is it? ", ["Yes, it is.", "No, it is not.", "It is."], 2),
    ("tab\there", ["is a\ttab", "is none"], 0),
    ("line\n\n", ["one", "two\nlines"], 1),
    ("a  b", ["c", " c", "  c"], 0),
    ("The end", ["of the sea", "of the sky", "."], 2),
]


def tokenizers():
    words = [text for context, endings, _ in QUESTIONS for text in [context, *endings]] * 3
    pieces = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    pieces.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                        decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"]
    spelled = special + [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [word for text in words if text.isascii() for word in text.split()]
    pieces.train_from_iterator(letters, trainers.BpeTrainer(vocab_size=420, special_tokens=spelled))
    pieces.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    described = json.loads(pieces.to_str())
    described["added_tokens"] = [one for one in described["added_tokens"] if one["content"] in special]
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_level.train_from_iterator(words, trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet,
                                                              special_tokens=["<|endoftext|>"]))
    fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
    yield "pieces", described, fast | {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    yield "byte_level", json.loads(byte_level.to_str()), fast | {"eos_token": "<|endoftext|>"}


def main():
    model, out = Llama(sys.argv[1]), sys.argv[2]
    lines = [{"context": context, "endings": endings, "label": label} for context, endings, label in QUESTIONS]
    with open(os.path.join(out, "questions.jsonl"), "w") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    # The harness takes letters as texts, so it is told their indices.
    index = lambda label: ord(label.upper()) - ord("A") if isinstance(label, str) else label
    with open("/tmp/numbered.jsonl", "w") as file:
        file.writelines(json.dumps(line | {"label": index(line["label"])}) + "\n" for line in lines)
    expected = {}
    for name, tokenizer, config in tokenizers():
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        json.dump(tokenizer, open(os.path.join(folder, "tokenizer.json"), "w"), ensure_ascii=False, separators=(",", ":"))
        json.dump(config, open(os.path.join(folder, "tokenizer_config.json"), "w"))
        lm = Scored(model, AutoTokenizer.from_pretrained(folder))
        task = ConfigurableTask(config={
            "task": "questions", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "/tmp/numbered.jsonl"}},
            "test_split": "test", "output_type": "multiple_choice", "doc_to_text": lambda doc: doc["context"],
            "doc_to_choice": lambda doc: doc["endings"], "doc_to_target": lambda doc: doc["label"],
            "metric_list": [{"metric": metric} for metric in ("acc", "acc_norm", "acc_bytes")],
        })
        results = evaluator.evaluate(lm=lm, task_dict={"questions": task}, bootstrap_iters=0)["results"]["questions"]
        tokens = sum(len(ending) for _, ending in lm.seen)
        loss = -sum(score for score, _ in lm._loglikelihood_tokens([(None, *one) for one in list(lm.seen)])) / tokens
        expected[name] = {metric: results[metric + ",none"] for metric in ("acc", "acc_norm", "acc_bytes")} | {
            "tokens": tokens, "loss": loss, "rows": lm.seen[:len(lm.seen) // 2]}
    json.dump(expected, open(os.path.join(out, "expected.json"), "w"), separators=(",", ":"))


main()
