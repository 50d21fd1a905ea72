#!/usr/bin/env python3
"""Every convolution of ResNet-50 in PyTorch, bf16 and channels-last, beside the time that its FLOPs and bytes take.

    python3 benches/peers/convolutions.py
    python3 benches/peers/convolutions.py --batch 64 --tflops 798 --tb-per-s 4.27

Prints microseconds of forward, input gradient and weight gradient: with cuDNN's first deterministic algorithm, with its
fastest deterministic one, and with its fastest. The sums are those of a training step.
"""

import argparse

from timing import timed

# Input channels, output channels, kernel, stride, height and width, and the number of such layers.
STRIDED = [(3, 64, 7, 2, 224, 1), (64, 64, 3, 1, 56, 3), (128, 128, 3, 2, 56, 1), (128, 128, 3, 1, 28, 3),
           (256, 256, 3, 2, 28, 1), (256, 256, 3, 1, 14, 5), (512, 512, 3, 2, 14, 1), (512, 512, 3, 1, 7, 2),
           (256, 512, 1, 2, 56, 1), (512, 1024, 1, 2, 28, 1), (1024, 2048, 1, 2, 14, 1)]
MATMULS = [(64, 64, 56, 1), (64, 256, 56, 4), (256, 64, 56, 2), (256, 128, 56, 1), (128, 512, 28, 4),
           (512, 128, 28, 3), (512, 256, 28, 1), (256, 1024, 14, 6), (1024, 256, 14, 5), (1024, 512, 14, 1),
           (512, 2048, 7, 3), (2048, 512, 7, 2)]
# Name, deterministic, chosen by measurement.
MODES = [("first deterministic", True, False), ("fastest deterministic", True, True), ("fastest", False, True)]


def measure(args, title, layers):
    import torch
    import torch.nn.functional as functional

    sums = {name: [0.0, 0.0, 0.0] for name, _, _ in MODES}
    for inputs, outputs, kernel, stride, size, count in layers:
        def array(*shape):
            values = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
            return values.to(memory_format=torch.channels_last)

        x, weight, pad = array(args.batch, inputs, size, size), array(outputs, inputs, kernel, kernel), kernel // 2

        def forward():
            return functional.conv2d(x, weight, stride=stride, padding=pad)

        y = forward()
        dy = torch.randn_like(y)

        def backward(wanted):
            torch.ops.aten.convolution_backward(
                dy, x, weight, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, wanted)

        columns = []
        for name, deterministic, by_measurement in MODES:
            torch.backends.cudnn.deterministic = deterministic
            torch.backends.cudnn.benchmark = by_measurement
            # Images have no gradient.
            of_input = 0.0 if inputs == 3 else timed(lambda: backward([True, False, False]))
            times = [timed(forward), of_input, timed(lambda: backward([False, True, False]))]
            sums[name] = [total + count * time for total, time in zip(sums[name], times)]
            columns.append(" ".join(f"{time * 1e3:5.0f}" for time in times))
        flops = 2 * y.numel() * inputs * kernel**2 / args.tflops / 1e6
        moved = 2 * (x.numel() + y.numel()) / args.tb_per_s / 1e6
        print(f"{inputs:5} > {outputs:4}, {kernel} x {kernel} / {stride}, {size:3} x {count}: {' | '.join(columns)}"
              f" | FLOPs {flops:.0f}, bytes {moved:.0f}", flush=True)
    for name, times in sums.items():
        print(f"{title}, {name}: {' + '.join(f'{time:.2f}' for time in times)} = {sum(times):.2f} ms a step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tflops", type=float, default=798.0, help="matmuls of the GPU")
    parser.add_argument("--tb-per-s", type=float, default=4.27, help="memory of the GPU")
    args = parser.parse_args()
    measure(args, "convolutions", STRIDED)
    measure(args, "1 x 1 convolutions", [(i, o, 1, 1, size, count) for i, o, size, count in MATMULS])


if __name__ == "__main__":
    main()
