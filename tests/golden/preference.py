"""Writes preference.json: TRL's losses, gradient norms and rewards of preference.jsonl in four steps of SGD, a
validation after them, and what the steps changed in every weight, for each loss of pairs of answers.

    pip install torch transformers trl
    plimsoll train CONFIG --set optim.learning_rate=1e-30 --set train.steps=1 --run-dir run
    plimsoll export run -o model
    TRL_EXPERIMENTAL_SILENCE=1 python tests/golden/preference.py model

CONFIG is PREFERENCE of tests/hugging_face/preference.rs; the model then has its initial weights. Conservative DPO,
which earlier versions of TRL had as "sigmoid" with label_smoothing, is computed here by its formula.
"""
import json
import os
import sys

import numpy
import torch
import trl
from datasets import Dataset
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 4
RATE = {"dpo": 1.0, "smoothed": 1.0, "ipo": 0.02, "orpo": 0.3}
BETA, SMOOTHING, LAMBDA = 0.3, 0.2, 0.5


class Smoothed(DPOTrainer):
    """DPO whose preferences are the wrong way round with a probability."""

    def _compute_loss(self, model, inputs, return_outputs):
        original = functional.logsigmoid

        def smoothed(x):
            return (1 - SMOOTHING) * original(x) + SMOOTHING * original(-x)

        functional.logsigmoid = smoothed
        try:
            return super()._compute_loss(model, inputs, return_outputs)
        finally:
            functional.logsigmoid = original


def pattern(count):
    return numpy.cos(numpy.arange(count, dtype=numpy.float64))


def changes(folder, model):
    """The norm of each weight's change, and its product with a fixed pattern."""
    before = load_file(os.path.join(folder, "model.safetensors"))
    result = {}
    for name, value in model.state_dict().items():
        if name in before:
            change = (value.double() - before[name].double()).numpy().reshape(-1)
            result[name] = [float(numpy.linalg.norm(change)), float(change @ pattern(change.size))]
    assert len(result) == len(before), (sorted(result), sorted(before))
    return result


def record(folder, loss):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # A token of its own, not the characters by which it is named.
    end = tokenizer.convert_ids_to_tokens(0)
    tokenizer.add_special_tokens({"eos_token": end, "pad_token": end})
    rows = [json.loads(line) for line in open(os.path.join(HERE, "preference.jsonl"))]
    data = Dataset.from_list(rows)
    common = dict(
        output_dir="/tmp/preference", per_device_train_batch_size=len(rows), per_device_eval_batch_size=len(rows),
        learning_rate=RATE[loss], lr_scheduler_type="constant", optim="sgd", weight_decay=0.0, max_grad_norm=1e9,
        max_steps=STEPS, logging_steps=1, eval_strategy="steps", eval_steps=STEPS, save_strategy="no", use_cpu=True,
        bf16=False, report_to=[], gradient_checkpointing=False, seed=1, disable_tqdm=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    operands = dict(model=model, train_dataset=data, eval_dataset=data, processing_class=tokenizer)
    if loss == "orpo":
        trainer = ORPOTrainer(args=ORPOConfig(beta=LAMBDA, max_length=40, **common), **operands)
    else:
        kind = "ipo" if loss == "ipo" else "sigmoid"
        of = Smoothed if loss == "smoothed" else DPOTrainer
        trainer = of(args=DPOConfig(beta=BETA, loss_type=[kind], max_length=None, **common), **operands)
    trainer.train()
    logs = trainer.state.log_history
    names = ["loss", "grad_norm", "rewards/accuracies", "rewards/margins", "rewards/chosen", "rewards/rejected"]
    steps = [log for log in logs if "loss" in log]
    assert len(steps) == STEPS, logs
    validation = [log for log in logs if "eval_loss" in log][-1]
    evaluated = [validation["eval_" + name] for name in names if name != "grad_norm"]
    return {
        "rate": RATE[loss],
        "steps": [[float(step[name]) for name in names] for step in steps],
        "validation": [float(value) for value in evaluated],
        "changes": changes(folder, trainer.model),
    }


folder = sys.argv[1]
recorded = {loss: record(folder, loss) for loss in ["dpo", "smoothed", "ipo", "orpo"]}
about = f"TRL {trl.__version__}, PyTorch {torch.__version__}"
with open(os.path.join(HERE, "preference.json"), "w") as file:
    json.dump({"about": about, "losses": recorded}, file, indent=1)
    file.write("\n")
