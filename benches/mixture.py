#!/usr/bin/env python3
"""Trains a mixture of experts beside its dense equal on text, and prints losses, speeds and the experts' loads.

    benches/mixture.py 'corpus/*.jsonl' [--program FILE] [--device cuda] [--steps N]

The mixture has 8 experts as wide as the feed-forward layers of a model of 60 million parameters, of which a token uses 2; the dense
model has feed-forward layers twice as wide, so that both compute as much for a token. Same tokens, seeds and learning rates."""

import argparse
import json
import pathlib
import subprocess
import tempfile

VOCABULARY = 16384
CONTEXT = 1024
CONFIG = """
[model]
kind = "llama"
layers = 12
heads = 8
width = 512
context = {context}
{feed_forward}
[data]
kind = "tokens"
paths = ["{shards}/train_*.bin"]
validation_paths = ["{shards}/val_*.bin"]
[train]
steps = {steps}
micro_batch_size = 32
global_batch_size = 32
validate_every = {validate_every}
{balance}
[optim]
kind = "adamw"
learning_rate = 1e-3
min_learning_rate = 1e-4
warmup_steps = 100
weight_decay = 0.1
clip_norm = 1.0
beta2 = 0.95
[parallel]
data = 1
lanes = 1
[precision]
compute = "bf16"
[checkpoint]
minutes = 0
"""
MODELS = {
    "dense": {"feed_forward": "feed_forward = 4096", "balance": ""},
    "mixture": {
        "feed_forward": "experts = 8\nexperts_per_token = 2\nexpert_width = 2048",
        "balance": "balance_loss = 0.01\nrouter_z_loss = 0.001",
    },
}


def shards_of(args, directory):
    """Returns a folder with token shards of the corpus, made with a tokenizer that is trained on it."""
    tokenizer, shards = directory / "tokenizer.json", directory / "shards"
    train = [args.program, "tokenizer", "train", "--vocabulary", str(VOCABULARY), "-o", str(tokenizer)]
    subprocess.run(train + (args.sample or args.corpus), check=True, stdout=subprocess.DEVNULL)
    tokenize = [args.program, "tokenize", "--tokenizer", str(tokenizer), "-o", str(shards), "--validation", "0.01"]
    subprocess.run(tokenize + args.corpus, check=True, stdout=subprocess.DEVNULL)
    return shards


def records(args, name, shards, directory):
    """Trains a model and returns the lines of its metrics."""
    config, run = directory / f"{name}.toml", directory / name
    values = {"context": CONTEXT, "shards": shards, "steps": args.steps, "validate_every": max(1, args.steps // 8)}
    config.write_text(CONFIG.format(**values, **MODELS[name]))
    command = [args.program, "train", str(config), "--device", args.device, "--run-dir", str(run)]
    for setting in args.set:
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+", help="files and globs of text, JSON lines or Parquet")
    parser.add_argument("--sample", nargs="+", help="files that the tokenizer is trained on [default: the corpus]")
    parser.add_argument("--program", default="plimsoll")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="a key of both models")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        shards = shards_of(args, directory)
        runs = {name: records(args, name, shards, directory) for name in MODELS}
    for name, lines in runs.items():
        rates = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")]
        print(f"{name}: {median(rates):,.0f} tokens/s")
    print("step  validation loss of " + ", ".join(runs))
    losses = {
        name: {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
        for name, lines in runs.items()
    }
    for step in losses["dense"]:
        print(f"{step:5}  " + "  ".join(f"{losses[name][step]:.4f}" for name in runs))
    loaded = [line for line in runs["mixture"] if line.get("expert_loads")]
    for line in loaded[:: max(1, len(loaded) // 8)] + loaded[-1:]:
        shares = [[load * len(layer) / sum(layer) for load in layer] for layer in line["expert_loads"].values()]
        least, most = min(map(min, shares)), max(map(max, shares))
        print(f"step {line['step']}: loads of experts from {least:.2f} to {most:.2f} of the mean")


if __name__ == "__main__":
    main()
