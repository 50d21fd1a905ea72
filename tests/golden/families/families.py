"""Writes small random models of further families beside this file, with what transformers computes of them in
float64: loss, gradient norms, logits and ten steps of AdamW; and for all families what `generate` continues
prompts with. Usage: python families.py, with numpy, torch and transformers 5.17 or newer."""

import json
import shutil
from pathlib import Path

import numpy
import torch
import transformers

CONTEXT, SEQUENCES, STEPS, TOKENS = 96, 8, 10, 48
HERE = Path(__file__).parent
COMMON = dict(
    vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    attn_implementation="eager")
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
        "beta_fast": 4.0, "beta_slow": 1.0, "attention_factor": 1.2}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64, "short_factor": [1.0] * 12,
            "long_factor": [1.0 + 0.5 * pair for pair in range(12)]}

MADE = {
    "ministral": lambda: transformers.MinistralConfig(
        **COMMON, head_dim=32, sliding_window=24, layer_types=["full_attention", "sliding_attention"]),
    "olmo3": lambda: transformers.Olmo3Config(
        **COMMON, sliding_window=24, layer_types=["sliding_attention", "full_attention"], rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": YARN}),
    "phi4": lambda: transformers.Phi3Config(
        **{**COMMON, "hidden_size": 128}, original_max_position_embeddings=64, rope_parameters=LONGROPE,
        tie_word_embeddings=True),
    "granite": lambda: transformers.GraniteConfig(
        **COMMON, attention_bias=True, mlp_bias=True, embedding_multiplier=6.0, residual_multiplier=0.22,
        attention_multiplier=0.125, logits_scaling=4.0, tie_word_embeddings=True),
    "deepseek": lambda: transformers.DeepseekV3Config(
        **{**COMMON, "num_key_value_heads": 4}, q_lora_rank=40, kv_lora_rank=32, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=24, first_k_dense_replace=2, num_mtp_layers=0, rope_parameters={
            **YARN, "attention_factor": None, "mscale": 0.8, "mscale_all_dim": 0.5}),
    # The last two layers use the keys and values of the third and of the second, across any cut after it.
    "gemma4-shared": lambda: transformers.Gemma4TextConfig(
        **{**COMMON, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 5,
           "num_key_value_heads": 4}, head_dim=8, global_head_dim=16, num_global_key_value_heads=2,
        attention_k_eq_v=True, sliding_window=24, vocab_size_per_layer_input=256, hidden_size_per_layer_input=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                     "full_attention"], num_kv_shared_layers=2, use_double_wide_mlp=True,
        final_logit_softcapping=12.0, tie_word_embeddings=True),
}
# The frequencies of longrope change while a text grows.
WITHOUT_TEXTS = ["phi4"]


def make(name, seed):
    """A folder of a random model in bf16, whose configuration names f32, as the folders of others here."""
    folder = HERE / name
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(MADE[name]())
    for parameter in model.parameters():
        parameter.data += (0.1 if parameter.dim() == 1 else 0.05) * torch.randn_like(parameter)
    model.to(torch.bfloat16).save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"dtype": "bfloat16"', '"dtype": "float32"'))
    shutil.copyfile(HERE / "mistral" / "tokens.bin", folder / "tokens.bin")
    model = load(name)
    inputs, targets = tokens(folder)
    logits, value = loss(model, inputs, targets)
    value.backward()
    norms = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
    options = {"lr": 1e-3, "beta2": 0.95, "weight_decay": 0, "clip": 1.0,
               "order": "one batch of all sequences, 10 times"}
    expected = {
        "transformers": transformers.__version__,
        "context": CONTEXT,
        "sequences": SEQUENCES,
        "loss": value.item(),
        "gradient_norm": sum(norm ** 2 for norm in norms.values()) ** 0.5,
        "gradient_norms": norms,
        "last_logits": logits[0, -1, :16].tolist(),
        "argmax": logits[0].argmax(-1).tolist(),
        "adamw": {**options, "losses": list(adamw(model, inputs, targets, options))},
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def load(name):
    return transformers.AutoModelForCausalLM.from_pretrained(
        HERE / name, attn_implementation="eager", experts_implementation="eager", dtype=torch.float64).eval()


def tokens(folder):
    stored = numpy.fromfile(folder / "tokens.bin", numpy.uint16, offset=1024).astype(numpy.int64)
    count = SEQUENCES * CONTEXT
    return (torch.from_numpy(stored[at:at + count]).view(SEQUENCES, CONTEXT) for at in (0, 1))


def loss(model, inputs, targets):
    logits = model(inputs).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(model, inputs, targets, options):
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options["lr"], betas=(0.9, options["beta2"]), weight_decay=options["weight_decay"])
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, value = loss(model, inputs, targets)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()
        yield value.item()


def texts(name):
    """Prompts within a window, of a few windows and of one token, and their greedy continuations."""
    model = load(name)
    inputs, _ = tokens(HERE / name)
    prompts = [inputs[0, :9].tolist(), inputs[1, :70].tolist(), inputs[2, :1].tolist()]
    continued = []
    for prompt in prompts:
        with torch.no_grad():
            # Without a mask, one is made that hides padding tokens in the prompt.
            text = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
        continued.append(text[0, len(prompt):].tolist())
    (HERE / name / "generation.json").write_text(json.dumps({"prompts": prompts, "tokens": continued}) + "\n")


def main():
    for seed, name in enumerate(MADE):
        make(name, 37 + seed)
    for folder in sorted(HERE.iterdir()):
        if folder.is_dir() and folder.name not in WITHOUT_TEXTS:
            texts(folder.name)


main()
