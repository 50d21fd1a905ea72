#!/usr/bin/env python3
"""Trains one configuration with several precisions and seeds, and prints their validation losses.

    benches/equal_loss.py CONFIG [--program FILE] [--seeds N] [--recipes bf16 tensorwise rowwise] [--set K=V]

The precisions are those of matmuls, or with adapters those of the weights beside them:

    benches/equal_loss.py CONFIG --set model.from=FOLDER --recipes base-compute base-nf4 base-int4 base-fp8

Each row is a step; each column a precision with the mean and the range over seeds, and its mean difference
from the first one's run of the same seed."""

import argparse
import json
import pathlib
import subprocess
import tempfile

RECIPES = {
    "bf16": ["precision.matmul=compute"],
    "tensorwise": ["precision.matmul=fp8", "precision.fp8_recipe=tensorwise"],
    "rowwise": ["precision.matmul=fp8", "precision.fp8_recipe=rowwise"],
    "tensorwise-e5m2": ["precision.matmul=fp8", "precision.fp8_gradients=e5m2"],
    **{f"base-{base}": [f"lora.base={base}"] for base in ("compute", "nf4", "int4", "fp8")},
}


def losses(args, recipe, seed, directory):
    """Returns the validation loss by step of one run."""
    run = pathlib.Path(directory) / f"{recipe}-{seed}"
    sets = RECIPES[recipe] + [f"train.seed={seed}", "checkpoint.minutes=0"] + args.set
    command = [args.program, "train", args.config, "--run-dir", str(run)]
    for setting in sets:
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "validation_loss" in record:
            found[record["step"]] = record["validation_loss"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--program", default="plimsoll")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", default=["bf16", "tensorwise"], choices=list(RECIPES))
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        runs = {
            recipe: [losses(args, recipe, seed, directory) for seed in range(1, args.seeds + 1)]
            for recipe in args.recipes
        }
    print("| step | " + " | ".join(f"{recipe}: mean (range of {args.seeds} seeds)" for recipe in runs) + " |")
    print("| --- |" + " --- |" * len(runs))
    first = next(iter(runs.values()))
    for step in sorted(first[0]):
        cells = []
        for seeds in runs.values():
            values = [run[step] for run in seeds]
            mean = sum(values) / len(values)
            more = mean - sum(run[step] for run in first) / len(first)
            of_first = "" if seeds is first else f", {more:+.4f}"
            cells.append(f"{mean:.4f} ({min(values):.4f} to {max(values):.4f}){of_first}")
        print(f"| {step} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
