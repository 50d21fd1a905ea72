#!/usr/bin/env python3
"""Trains one model in several precisions on one device, and prints speed, memory and loss of each.

Usage: benches/precision.py --program target/release/plimsoll [--steps 1000] [--device cuda] [--small]
                            [--precisions NAME...] [--set KEY=VALUE]...

The model is launch/configs/gpt2-124m.toml at micro-batch 16, on the bytes of this repository's text; with --small
one of 4 layers of 128 values, which a CPU trains too. Narrow optimizer state and f32 weights are compared in bf16.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRECISIONS = {
    "f32": [],
    "TF32": ["precision.tf32=true"],
    "bf16": ["precision.compute=bf16"],
    "f16": ["precision.compute=f16"],
    "FP8": ["precision.compute=bf16", "precision.matmul=fp8"],
    "bf16, f32 weights": ["precision.compute=bf16", "precision.weights=f32"],
    "bf16, state bf16": ["precision.compute=bf16", "optim.state=bf16"],
    "bf16, state 8bit": ["precision.compute=bf16", "optim.state=8bit"],
    "f32, state bf16": ["optim.state=bf16"],
    "f32, state 8bit": ["optim.state=8bit"],
}
SMALL = ["model.layers=4", "model.width=128", "model.heads=4", "model.context=128", "optim.learning_rate=1e-3"]
CONFIG = "launch/configs/gpt2-124m.toml"


def settings(arguments, precision):
    """Returns the arguments of plimsoll for a precision."""
    text = [str(ROOT / "docs/*.md"), str(ROOT / "crates/*/src/*.rs"), str(ROOT / "crates/*/src/*/*.rs")]
    sets = [
        "data.kind=text",
        f"data.paths={json.dumps(text)}",
        "train.micro_batch_size=16",
        "train.global_batch_size=16",
        "parallel.lanes=1",
        f"train.steps={arguments.steps}",
        f"train.validate_every={arguments.steps}",
        "train.validation_micro_batches=8",
        "checkpoint.minutes=0",
        *(SMALL if arguments.small else []),
        *PRECISIONS[precision],
        *arguments.set,
    ]
    return [part for setting in sets for part in ("--set", setting)]


def train(arguments, precision, directory):
    """Trains, and returns the run's summary and last validation loss."""
    run = pathlib.Path(directory) / precision.replace(", ", "-").replace(" ", "-")
    command = [arguments.program, "train", str(ROOT / CONFIG), "--device", arguments.device]
    command += ["--run-dir", str(run), *settings(arguments, precision)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{precision}: {done.stderr[-2000:]}")
    return json.loads((run / "summary.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default="plimsoll")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    print("| precision | tokens/s | peak allocated, bytes | training loss | validation loss | skipped |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for precision in arguments.precisions:
            summary = train(arguments, precision, directory)
            peak = max(rank["peak_allocated_bytes"] for rank in summary["ranks"])
            last = summary["losses"][-20:]
            row = [
                precision,
                f"{summary['tokens_per_second']:,.0f}",
                f"{peak:,}",
                f"{sum(last) / len(last):.4f}",
                f"{summary.get('validation_loss', float('nan')):.4f}",
                str(summary.get("skipped_steps", "")),
            ]
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
