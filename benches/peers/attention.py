#!/usr/bin/env python3
"""Causal attention in PyTorch by head width, forward and backward, in bf16: the sizes of `plimsoll bench attention`.

    python3 benches/peers/attention.py
    python3 benches/peers/attention.py --widths 80 256 --time 4096 --columns 2048
    python3 benches/peers/attention.py --widths 64 128 256 --batch 1 --time 32768 --window 1024

Prints milliseconds and TFLOP/s (2 matmuls forward and 5 backward, over the pairs of a query and a key that it sees) of each backend
of scaled_dot_product_attention that takes the sizes, and whether five backward passes gave the same bits, with PyTorch's
deterministic algorithms and without. With --window: of FlexAttention under torch.compile, whose block mask of the window is made
before.
"""

import argparse

from timing import timed


def operands_of(args, width):
    """Queries, keys and values, which require gradients, and the gradient of the output."""
    import torch

    heads = max(1, args.columns // width)
    counts = [heads, args.key_value_heads or heads, args.key_value_heads or heads, heads]
    shapes = [(args.batch, args.time, count, width) for count in counts]
    *operands, dy = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for shape in shapes)
    return [x.requires_grad_() for x in operands], dy


def measure(args, width, name, attention):
    """Times a function of queries, keys and values, and prints a row."""
    import torch

    operands, dy = operands_of(args, width)
    y = attention(*operands)

    def backward():
        return torch.autograd.grad(y, operands, dy, retain_graph=True)

    with torch.no_grad():
        forward = timed(lambda: attention(*operands))
    back = timed(backward)
    first = backward()
    repeats = all(torch.equal(a, b) for _ in range(5) for a, b in zip(first, backward()))
    window = min(args.window or args.time, args.time)
    pairs = window * (window + 1) / 2 + (args.time - window) * window
    flops = 2 * args.batch * operands[0].shape[1] * pairs * width / 1e9
    print(f"width {width:3}, {name:34}: forward {forward:6.3f} ms {2 * flops / forward:4.0f} TFLOP/s, "
          f"backward {back:6.3f} ms {5 * flops / back:4.0f} TFLOP/s, {'repeats' if repeats else 'does not repeat'}", flush=True)


def scaled_dot_products(args):
    """Functions by name: each backend, with PyTorch's deterministic algorithms and without."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def of(backend, deterministic):
        def attention(*operands):
            torch.use_deterministic_algorithms(deterministic)
            with sdpa_kernel([backend]):
                return scaled_dot_product_attention(*operands, is_causal=True, enable_gqa=args.key_value_heads is not None)

        return attention

    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        for deterministic in (False, True):
            yield f"{backend.name}{' deterministic' if deterministic else ''}", of(backend, deterministic)


def flex_attention(args):
    """FlexAttention, compiled for the sizes, with a causal mask and the window; by default, and with autotuned tiles."""
    import torch
    from torch.nn.attention import flex_attention

    def seen(_, __, query, key):
        return (query >= key) & (query - key < args.window)

    mask = flex_attention.create_block_mask(seen, None, None, args.time, args.time, device="cuda")
    for name, mode in (("compiled FlexAttention", None), ("... max-autotune", "max-autotune-no-cudagraphs")):
        if mode is None or args.autotune:
            torch.compiler.reset()
            compiled = torch.compile(flex_attention.flex_attention, dynamic=False, fullgraph=True, mode=mode)
            yield name, lambda *x: compiled(*x, block_mask=mask, enable_gqa=args.key_value_heads is not None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 80, 128, 192, 256])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--time", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=2048, help="of all heads; a last head in part is left out")
    parser.add_argument("--key-value-heads", type=int, help="which consecutive query heads share")
    parser.add_argument("--window", type=int, help="keys that a query sees, its own position included: measures FlexAttention")
    parser.add_argument("--autotune", action="store_true", help="FlexAttention also with autotuned tiles, which takes minutes")
    args = parser.parse_args()

    for width in args.widths:
        for name, attention in flex_attention(args) if args.window else scaled_dot_products(args):
            try:
                measure(args, width, name, attention)
            except RuntimeError as error:
                print(f"width {width:3}, {name:34}: {str(error).splitlines()[0][:90]}", flush=True)


if __name__ == "__main__":
    main()
