"""Writes half.json beside this file: losses and gradient norms of ten steps of AdamW on each recorded model, as transformers
compute them in float64 and in bf16, there with float32 master weights, which are rounded to bf16 before each step, and gradients
that are widened. Usage: python half.py, with numpy, torch and transformers 5.17 or newer."""

import json
from pathlib import Path

import numpy
import torch
import transformers

CONTEXT, SEQUENCES, STEPS = 96, 8, 10
LEARNING_RATE, BETAS, CLIP = 1e-3, (0.9, 0.95), 1.0
HERE = Path(__file__).parent


def tokens(folder):
    stored = numpy.fromfile(folder / "tokens.bin", numpy.uint16, offset=1024).astype(numpy.int64)
    count = SEQUENCES * CONTEXT
    return (torch.from_numpy(stored[at:at + count]).view(SEQUENCES, CONTEXT) for at in (0, 1))


def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager", dtype=dtype).eval()


def steps(folder, dtype):
    """Losses and gradient norms of the steps. The model computes in `dtype`; masters are float64, or float32 beside bf16."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    masters = [parameter.detach().clone() for parameter in load(folder, wide).parameters()]
    # Loaded in `dtype`, so that rotary frequencies stay as transformers have them then.
    model = load(folder, dtype)
    optimizer = torch.optim.AdamW(masters, lr=LEARNING_RATE, betas=BETAS, weight_decay=0)
    inputs, targets = tokens(folder)
    losses, norms = [], []
    for _ in range(STEPS):
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), masters):
                parameter.copy_(master)
        model.zero_grad()
        logits = model(inputs).logits
        # As transformers' losses, in float32 at least.
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten())
        loss.backward()
        for parameter, master in zip(model.parameters(), masters):
            master.grad = parameter.grad.to(wide)
        norms.append(torch.nn.utils.clip_grad_norm_(masters, CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "gradient_norms": norms}


def main():
    recorded = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    for config in sorted(HERE.glob("*/*/config.json")):
        folder = config.parent
        types = (torch.float64, torch.bfloat16)
        recorded[str(folder.relative_to(HERE))] = {str(dtype).removeprefix("torch."): steps(folder, dtype) for dtype in types}
    (HERE / "half.json").write_text(json.dumps(recorded, indent=1) + "\n")


main()
