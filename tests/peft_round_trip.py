"""Loads adapters of Plimsoll in PEFT, compares them with the merged model, and writes adapters of PEFT.

Arguments: the model's folder, our adapters, our merged model, and where to write adapters. Prints the mean
loss on the recorded tokens with our adapters, and with the ones that were written, and greedy tokens, as JSON.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

base, ours, merged, theirs = map(Path, sys.argv[1:])
words = numpy.fromfile(base / "tokens.bin", dtype=numpy.uint16, offset=1024).astype(numpy.int64)
count = (len(words) - 1) // 96
inputs = torch.tensor(words[: count * 96]).view(count, 96)
targets = torch.tensor(words[1 : count * 96 + 1]).view(count, 96)


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32).eval()


@torch.no_grad()
def logits(model):
    return model(input_ids=inputs).logits


def loss(model):
    return torch.nn.functional.cross_entropy(logits(model).flatten(0, 1), targets.flatten()).item()


def greedy(model, row):
    with torch.no_grad():
        prompt = inputs[row : row + 1, :16]
        return model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                              max_new_tokens=64, min_new_tokens=64, eos_token_id=None, pad_token_id=0)


adapted = PeftModel.from_pretrained(load(base), ours).eval()
whole = load(merged)
difference = (logits(adapted) - logits(whole)).abs().max().item()
assert difference < 1e-4, f"logits of merged and unmerged adapters differ by {difference}"
# A prompt after which no token ends the text.
texts = [(row, greedy(adapted, row)) for row in range(count)]
row, text = next(found for found in texts if adapted.config.eos_token_id not in found[1][0, 16:].tolist())
assert torch.equal(text, greedy(whole, row)), "greedy tokens of merged and unmerged adapters differ"

torch.manual_seed(1)
config = LoraConfig(
    r=3, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
)
other = get_peft_model(load(base), config).eval()
other.save_pretrained(theirs)
tokens = text[0].tolist()
print(json.dumps({"loss": loss(adapted), "loss_of_theirs": loss(other), "prompt": tokens[:16], "tokens": tokens[16:]}))
