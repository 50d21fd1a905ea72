#!/usr/bin/env python3
"""Grouped matmuls of experts in PyTorch (torch._grouped_mm, torch._scaled_grouped_mm) beside `plimsoll bench experts`.

    python3 benches/peers/experts.py --plimsoll target/release/plimsoll [--precisions bf16,fp8] [--json]

For the sizes of Qwen3-30B-A3B (128 experts, 65,536 rows) and of Mixtral 8x7B (8 experts, 16,384 rows), and for rows spread evenly, as
1, 1/2, 1/3 ..., and to one expert: milliseconds of outputs, gradients of inputs and gradients of weights, and how many times as fast
Plimsoll is. Plimsoll is measured before and after PyTorch, and the slower of its two times is compared. PyTorch's FP8 has a factor for
each row and E4M3 alone; its gradients of weights add without f32's help. Plimsoll's have E5M2 gradients, and add in f32.
"""

import argparse
import json
import statistics
import subprocess

SHAPES = [  # name, experts, rows, outputs, inputs
    ("Qwen3-30B-A3B, gate and up", 128, 65536, 1536, 2048),
    ("Qwen3-30B-A3B, down", 128, 65536, 2048, 768),
    ("Mixtral 8x7B, gate and up", 8, 16384, 28672, 4096),
    ("Mixtral 8x7B, down", 8, 16384, 4096, 14336),
]
MATMULS = ("forward", "input", "weight")


def spread(kind, rows, experts):
    """Rows of each expert in multiples of 16, as `plimsoll bench experts` spreads them."""
    shares = {"balanced": [1.0] * experts, "skewed": [1 / (at + 1) for at in range(experts)], "one": [1.0] + [0.0] * (experts - 1)}[kind]
    counts = [round(rows * share / sum(shares) / 16) * 16 for share in shares]
    return counts[::2] + counts[1::2][::-1]


def timed(call, times=20):
    """Median milliseconds of a call."""
    import torch

    for _ in range(3):
        call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in zip(marks, marks[1:]))


def calls(precision, counts, outputs, inputs):
    """PyTorch's three matmuls by name."""
    import torch

    rows, experts = sum(counts), len(counts)
    ends = torch.tensor(counts, device="cuda").cumsum(0).int()

    def random(*shape):
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return x if precision == "bf16" else x.to(torch.float8_e4m3fn)

    def ones(*shape):
        return torch.ones(shape, device="cuda")

    x, dy, weight = random(rows, inputs), random(rows, outputs), random(experts, outputs, inputs)
    if precision == "bf16":
        return {
            "forward": lambda: torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends),
            "input": lambda: torch._grouped_mm(dy, weight, offs=ends),
            "weight": lambda: torch._grouped_mm(dy.t(), x, offs=ends),
        }
    turned, x_turned, dy_turned = random(experts, inputs, outputs), random(inputs, rows), random(outputs, rows)
    of_rows, kind = ones(rows), torch.bfloat16

    def scaled(a, b, a_scale, b_scale, fast=True):
        return torch._scaled_grouped_mm(a, b, a_scale, b_scale, ends, out_dtype=kind, use_fast_accum=fast)

    return {
        "forward": lambda: scaled(x, weight.transpose(-2, -1), of_rows, ones(experts, outputs)),
        "input": lambda: scaled(dy, turned.transpose(-2, -1), of_rows, ones(experts, inputs)),
        "weight": lambda: scaled(dy_turned, x_turned.t(), ones(outputs * experts), ones(inputs * experts), False),
    }


def plimsoll(given, precision, experts, rows, outputs, inputs):
    """Lines of `plimsoll bench experts` by spread."""
    command = [given.plimsoll, "bench", "experts", "--json", "--device", "cuda", "--precision", precision, "--experts", experts]
    command += ["--rows", rows, "--outputs", outputs, "--inputs", inputs]
    answer = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    return {line["spread"]: line for line in map(json.loads, answer.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, help="the program")
    parser.add_argument("--precisions", default="bf16,fp8")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each shape and spread")
    given = parser.parse_args()
    import torch

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: milliseconds of PyTorch and Plimsoll, times as fast", flush=True)
    for precision in given.precisions.split(","):
        for name, *sizes in SHAPES:
            experts, rows, outputs, inputs = sizes
            before = plimsoll(given, precision, *sizes)
            theirs = {}
            for kind in ("balanced", "skewed", "one"):
                made = calls(precision, spread(kind, rows, experts), outputs, inputs)
                theirs[kind] = {matmul: timed(call) for matmul, call in made.items()}
                del made
            torch.cuda.empty_cache()
            after = plimsoll(given, precision, *sizes)
            for kind, times in theirs.items():
                ours = {matmul: max(lines[kind][f"{matmul}_milliseconds"] for lines in (before, after)) for matmul in MATMULS}
                cells = (f"{matmul} {times[matmul]:.3f} {ours[matmul]:.3f} {times[matmul] / ours[matmul]:.2f}" for matmul in MATMULS)
                print(f"{precision:4} {name:26} {kind:8}: " + ", ".join(cells), flush=True)
                if given.json:
                    print(json.dumps({"precision": precision, "shape": name, "spread": kind, "pytorch": times, "plimsoll": ours}))


if __name__ == "__main__":
    main()
