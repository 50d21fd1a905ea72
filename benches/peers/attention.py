#!/usr/bin/env python3
"""Causal attention in PyTorch by head width, forward and backward, in bf16, with each backend that takes the sizes.

    python3 benches/peers/attention.py
    python3 benches/peers/attention.py --widths 80 256 --time 4096 --columns 2048

Prints milliseconds and TFLOP/s (2 matmuls of the causal half forward, 5 backward) of each backend, and whether five
backward passes gave the same bits, with PyTorch's deterministic algorithms and without.
"""

import argparse

from timing import timed


def measure(args, width, backend, deterministic):
    import torch
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.use_deterministic_algorithms(deterministic)
    heads = max(1, args.columns // width)
    shape = (args.batch, args.time, heads, width)
    q, k, v, dy = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(4))
    operands = [x.requires_grad_() for x in (q, k, v)]
    with sdpa_kernel([backend]):
        y = scaled_dot_product_attention(*operands, is_causal=True)

        def backward():
            return torch.autograd.grad(y, operands, dy, retain_graph=True)

        with torch.no_grad():
            forward = timed(lambda: scaled_dot_product_attention(*operands, is_causal=True))
        back = timed(backward)
        first = backward()
        repeats = all(torch.equal(a, b) for _ in range(5) for a, b in zip(first, backward()))
    flops = args.batch * heads * args.time**2 * width / 1e9
    print(f"width {width:3}, {backend.name:20} {'deterministic' if deterministic else '':13}: forward {forward:6.3f} ms "
          f"{2 * flops / forward:4.0f} TFLOP/s, backward {back:6.3f} ms {5 * flops / back:4.0f} TFLOP/s, "
          f"{'repeats' if repeats else 'does not repeat'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 80, 128, 192, 256])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--time", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=2048, help="of all heads; a last head in part is left out")
    args = parser.parse_args()

    from torch.nn.attention import SDPBackend

    for width in args.widths:
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            for deterministic in (False, True):
                try:
                    measure(args, width, backend, deterministic)
                except RuntimeError as error:
                    print(f"width {width:3}, {backend.name:20}: {str(error).splitlines()[0][:90]}", flush=True)


if __name__ == "__main__":
    main()
