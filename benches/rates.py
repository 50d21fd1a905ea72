#!/usr/bin/env python3
"""The best learning rate of models of several widths, with and without `model.base_width`.

    python3 benches/rates.py --plimsoll target/release/plimsoll
    python3 benches/rates.py --plimsoll target/release/plimsoll --widths 64 128 --rates 1e-3 4e-3 --steps 20

Trains a byte-level GPT of two layers on Plimsoll's own sources for every width and rate. Heads have 16 values at the
base width, and every width has as many heads. Prints the mean loss of the last steps, and marks the best rate of
each width.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Steps at the end whose mean loss is compared.
LAST = 10
CONFIGURATION = """
[model]
kind = "gpt"
layers = 2
heads = 4
context = 64
tied = false

[data]
kind = "text"
paths = ["{root}/crates/*/src/*.rs"]

[train]
micro_batch_size = 8
global_batch_size = 8

[optim]
schedule = "linear"
warmup = "10%"
weight_decay = 0

[parallel]
lanes = 1

[precision]
compute = "f32"
"""


def loss(plimsoll, directory, configuration, sets):
    """Trains a model, and returns the mean loss of its last steps; None if it is not finite."""
    run = directory / "-".join(sets).replace("/", "_")
    command = [plimsoll, "train", configuration, "--device", "cpu", "--run-dir", run]
    command += [argument for key in sets for argument in ("--set", key)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    losses = json.loads((run / "summary.json").read_text())["losses"][-LAST:]
    return sum(losses) / len(losses) if all(losses) else None


def table(title, rows, rates, widths):
    """Prints the losses by rate and width, the best of each width in bold."""
    best = {width: min((rows[width, rate] or 1e9, rate) for rate in rates)[1] for width in widths}
    print(f"\n| {title}: rate |", " | ".join(f"width {width}" for width in widths), "|")
    print("| --- |", " | ".join("---:" for _ in widths), "|")
    for rate in rates:
        cell = lambda width: "not finite" if rows[width, rate] is None else f"{rows[width, rate]:.3f}"
        cells = (f"**{cell(width)}**" if best[width] == rate else cell(width) for width in widths)
        print(f"| {rate:g} |", " | ".join(cells), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", default=ROOT / "target/release/plimsoll", type=pathlib.Path)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--rates", nargs="+", type=float, default=[2**-k for k in range(10, 3, -1)])
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    widths, rates = arguments.widths, arguments.rates
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        configuration = directory / "rates.toml"
        configuration.write_text(CONFIGURATION.format(root=ROOT))
        for title, base in [("with a base width", widths[0]), ("without", 0)]:
            rows = {}
            for width in widths:
                for rate in rates:
                    sets = [f"model.width={width}", f"model.base_width={base}", f"train.steps={arguments.steps}"]
                    sets.append(f"optim.learning_rate={rate!r}")
                    rows[width, rate] = loss(arguments.plimsoll, directory, configuration, sets)
                    print(".", end="", file=sys.stderr, flush=True)
            table(title, rows, rates, widths)


if __name__ == "__main__":
    main()
