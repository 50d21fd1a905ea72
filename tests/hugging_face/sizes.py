"""Makes random models of transformers in a folder each below the argument, and tokens in tokens.bin; prints the mean loss of each
model on them as JSON."""

import json
import sys
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

SMALL = dict(vocab_size=199, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
MODELS = {
    "llama-one-kv-head": LlamaConfig(**SMALL | dict(num_key_value_heads=1, tie_word_embeddings=True)),
    "llama-head-dim": LlamaConfig(**SMALL | dict(head_dim=32, rope_parameters=LLAMA3)),
    "llama-linear": LlamaConfig(**SMALL, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "smollm2": LlamaConfig(**SMALL | dict(hidden_size=144, num_attention_heads=9, num_key_value_heads=3, rms_norm_eps=1e-5,
                                          tie_word_embeddings=True)),
    "mistral": MistralConfig(**SMALL | dict(head_dim=16, sliding_window=None)),
    "qwen2-tied": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SMALL | dict(num_key_value_heads=4)),
    "qwen3-tied": Qwen3Config(**SMALL | dict(head_dim=32, num_key_value_heads=1, tie_word_embeddings=True)),
    "qwen3": Qwen3Config(**SMALL | dict(head_dim=16)),
    "gpt2": GPT2Config(vocab_size=199, n_embd=48, n_layer=3, n_head=3, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                       attn_pdrop=0.0),
    "gpt2-untied": GPT2Config(vocab_size=199, n_embd=32, n_layer=1, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                              attn_pdrop=0.0, activation_function="gelu", tie_word_embeddings=False),
}

out = Path(sys.argv[1])
torch.manual_seed(5)
tokens = torch.randint(199, (49,))
header = numpy.zeros(256, dtype=numpy.int32)
header[:3] = 20240520, 1, len(tokens)
(out / "tokens.bin").write_bytes(header.tobytes() + tokens.numpy().astype(numpy.uint16).tobytes())
losses = {}
for name, config in MODELS.items():
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(out / name)
    with torch.no_grad():
        logits = model.double()(tokens[:48].view(2, 24)).logits
    losses[name] = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[1:]).item()
print(json.dumps(losses))
