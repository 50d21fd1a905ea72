#!/usr/bin/env python3
"""Trains one configuration with AdamW and with Muon at several learning rates, and prints their validation losses.

    benches/optimizers.py launch/configs/quickstart.toml [--program FILE] [--device cuda] [--steps N] [--set K=V ...]

All runs have the same tokens, seeds and schedule. Muon has the factor "rms", with which AdamW's learning rates carry over; embeddings,
head and vectors have AdamW's best rate beside it."""

import argparse
import json
import pathlib
import subprocess
import tempfile


def trained(args, directory, name, settings):
    """Trains a run; returns its last validation loss and the median tokens per second."""
    run = pathlib.Path(directory) / name
    command = [args.program, "train", args.config, "--device", args.device, "--run-dir", str(run)]
    for setting in [*args.set, *settings]:
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["validation_loss"] for line in lines if "validation_loss" in line]
    rates = sorted(line["tokens_per_second"] for line in lines if line.get("tokens_per_second"))
    return losses[-1], rates[len(rates) // 2] if rates else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="the configuration that all runs share")
    parser.add_argument("--program", default="plimsoll")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--adamw", nargs="+", type=float, default=[1e-3, 3e-3, 1e-2], help="AdamW's learning rates")
    parser.add_argument("--muon", nargs="+", type=float, default=[1e-3, 3e-3, 1e-2], help="Muon's learning rates")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="a key of all runs")
    args = parser.parse_args()
    print("| optimizer | learning rate | validation loss | tokens/s |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory:
        losses = {}
        for rate in args.adamw:
            settings = ["optim.kind=adamw", f"optim.learning_rate={rate}", f"optim.min_learning_rate={rate / 10}"]
            losses[rate], speed = trained(args, directory, f"adamw-{rate}", settings)
            print(f"| AdamW | {rate:g} | {losses[rate]:.4f} | {speed:,.0f} |", flush=True)
        best = min(losses, key=losses.get)
        for rate in args.muon:
            settings = ["optim.kind=muon", f"optim.learning_rate={rate}", f"optim.min_learning_rate={rate / 10}"]
            settings.append(f"optim.muon_adamw_rate={best / rate}")
            loss, speed = trained(args, directory, f"muon-{rate}", settings)
            print(f"| Muon, others at {best:g} | {rate:g} | {loss:.4f} | {speed:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
