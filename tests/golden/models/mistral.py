"""Writes `mistral/` beside this file: a small random Mistral without a window, and what transformers computes with it
in float64. Usage: python mistral.py, with numpy, torch and transformers 5.23."""

import json
import shutil
from pathlib import Path

import numpy
import torch
import transformers

CONTEXT, SEQUENCES, STEPS = 96, 8, 10
HERE = Path(__file__).parent
FOLDER = HERE / "mistral"


def model():
    config = transformers.MistralConfig(
        vocab_size=768, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, attn_implementation="eager")
    torch.manual_seed(19)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        deviation = 0.1 if parameter.dim() == 1 else 0.05
        parameter.data += deviation * torch.randn_like(parameter)
    model.save_pretrained(FOLDER)
    return model.double().eval()


def tokens():
    shutil.copyfile(HERE / "llama" / "tokens.bin", FOLDER / "tokens.bin")
    stored = numpy.fromfile(FOLDER / "tokens.bin", numpy.uint16, offset=1024).astype(numpy.int64)
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


def main():
    made = model()
    inputs, targets = tokens()
    logits, value = loss(made, inputs, targets)
    value.backward()
    norms = {name: parameter.grad.norm().item() for name, parameter in made.named_parameters()}
    options = {"lr": 1e-3, "beta2": 0.95, "weight_decay": 0, "clip": 1.0,
               "order": "one batch of all sequences, 10 times"}
    expected = {
        "context": CONTEXT,
        "sequences": SEQUENCES,
        "loss": value.item(),
        "gradient_norm": sum(norm ** 2 for norm in norms.values()) ** 0.5,
        "gradient_norms": norms,
        "last_logits": logits[0, -1, :16].tolist(),
        "argmax": logits[0].argmax(-1).tolist(),
        "adamw": {**options, "losses": list(adamw(made, inputs, targets, options))},
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


main()
