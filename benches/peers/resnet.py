#!/usr/bin/env python3
"""ResNet-50 beside PyTorch: speed and memory of a training step and of inference, for full and half the channels.

    python3 benches/peers/resnet.py --plimsoll target/release/plimsoll
    python3 benches/peers/resnet.py --widths 1.0 0.5 --dtypes bf16 f32 --batch 256 --variants eager compile

Prints one JSON object per measurement, then tables of speed and of bytes. PyTorch trains as its own recipes do:
channels-last, autocast, f32 weights, SGD with momentum, images that lie on the device as floats. Plimsoll runs
`plimsoll bench step`, which copies a micro-batch of 8-bit pixels each step. Activations are what the peak has beside
weights, gradients, optimizer state and images: with gradients of activations and workspaces.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys

STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def network(depth, width, classes):
    """A ResNet of bottlenecks, with torchvision's layers and `width` times its channels."""
    import torch.nn as nn

    def convolution(inputs, outputs, kernel, stride=1):
        return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)

    class Bottleneck(nn.Module):
        def __init__(self, inputs, inner, stride):
            super().__init__()
            outputs = 4 * inner
            self.body = nn.Sequential(
                convolution(inputs, inner, 1), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
                convolution(inner, inner, 3, stride), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
                convolution(inner, outputs, 1), nn.BatchNorm2d(outputs))
            self.shortcut = nn.Identity()
            if stride > 1 or inputs != outputs:
                self.shortcut = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.body(x) + self.shortcut(x))

    channels = [int(width * base) for base in (64, 128, 256, 512)]
    layers = [convolution(3, channels[0], 7, 2), nn.BatchNorm2d(channels[0]), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    inputs = channels[0]
    for stage, (inner, blocks) in enumerate(zip(channels, STAGES[depth])):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, inner, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def torch_step(args, width, dtype, variant, trains):
    """Measures PyTorch; returns milliseconds and bytes."""
    import torch

    torch.manual_seed(0)
    deterministic = variant == "deterministic"
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    types = {"bf16": torch.bfloat16, "f16": torch.float16}
    model = network(args.depth, width, args.classes).cuda().to(memory_format=torch.channels_last).train(trains)
    count = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-4) if trains else None
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == "f16")
    run = torch.compile(model) if variant == "compile" else model
    size = (args.batch, 3, args.size, args.size)
    images = torch.randn(size, device="cuda").to(memory_format=torch.channels_last)
    classes = torch.randint(0, args.classes, (args.batch,), device="cuda")

    def step():
        with torch.autocast("cuda", types.get(dtype), enabled=dtype in types), torch.set_grad_enabled(trains):
            scores = run(images)
            loss = torch.nn.functional.cross_entropy(scores, classes) if trains else scores
        if trains:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

    for _ in range(args.warm_up):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    pairs = []
    for _ in range(args.steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    size = lambda tensors: sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    parameters = size(model.parameters())
    state = size(value for values in optimizer.state.values() for value in values.values()
                 if torch.is_tensor(value)) if trains else 0
    gradients = parameters if trains else 0
    peak = torch.cuda.max_memory_allocated()
    held = parameters + gradients + state + size(model.buffers()) + size([images, classes])
    found = {
        "parameters": count,
        "parameter_bytes": parameters,
        "gradient_bytes": gradients,
        "optimizer_state_bytes": state,
        "activation_bytes": peak - held,
        "milliseconds": statistics.median(begin.elapsed_time(end) for begin, end in pairs),
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    del model, optimizer, run, images, classes, step
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return found


def plimsoll_step(args, width, dtype, trains):
    """Measures Plimsoll's training step or forward pass; returns milliseconds and bytes, or nothing if it fails."""
    sizes = {"depth": args.depth, "width": width, "classes": args.classes, "image_size": args.size}
    command = [args.plimsoll, "bench", "step", "--json", "--model", "resnet50", "--device", "cuda",
               "--micro-batch-size", str(args.batch), "--steps", str(args.steps), "--warm-up", str(args.warm_up)]
    command += ["--warm-up-seconds", str(args.warm_up_seconds)] + ([] if trains else ["--forward"])
    sets = [f"model.{key}={value}" for key, value in sizes.items()]
    sets += [f"precision.compute={dtype}", "optim.kind=sgd", "optim.weight_decay=1e-4", "optim.clip_norm=0"]
    for setting in sets:
        command += ["--set", setting]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        print(ran.stderr, file=sys.stderr)
        return None
    answer = json.loads(ran.stdout.strip().splitlines()[-1])
    at_peak = answer["at_peak_bytes"]
    return {key: answer[key] for key in ("peak_allocated_bytes", "peak_reserved_bytes", "parameters")} | {
        "milliseconds": 1e3 * answer["seconds"],
        "parameter_bytes": at_peak["parameter"],
        "gradient_bytes": at_peak["gradient"],
        "optimizer_state_bytes": at_peak["optimizer_state"],
        "activation_bytes": at_peak["activation"] + at_peak["activation_gradient"] + at_peak["workspace"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", help="the program; without it only PyTorch is measured")
    parser.add_argument("--depth", type=int, default=50, choices=STAGES)
    parser.add_argument("--widths", type=float, nargs="+", default=[1.0, 0.5])
    parser.add_argument("--dtypes", nargs="+", default=["bf16"], choices=["bf16", "f16", "f32"])
    parser.add_argument("--variants", nargs="*", default=["compile"], choices=["eager", "deterministic", "compile"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--warm-up-seconds", type=float, default=3, help="of Plimsoll, whose images are made meanwhile")
    args = parser.parse_args()

    rows = []

    def report(peer, width, dtype, phase, found):
        found = {"peer": peer, "width": width, "dtype": dtype, "phase": phase} | found
        print(json.dumps(found), flush=True)
        rows.append(found)

    for dtype in args.dtypes:
        for width in args.widths:
            for trains, phase in ((True, "training"), (False, "inference")):
                found = plimsoll_step(args, width, dtype, trains) if args.plimsoll else None
                if found is not None:
                    report("plimsoll", width, dtype, phase, found)
                for variant in args.variants:
                    report(f"torch {variant}", width, dtype, phase, torch_step(args, width, dtype, variant, trains))

    print("\n| | dtype | width | phase | images/s | peak allocated, GB | reserved, GB |\n" + "| --- " * 7 + "|")
    for row in rows:
        speed = args.batch / row["milliseconds"] * 1e3
        memory = [row[key] / 1e9 for key in ("peak_allocated_bytes", "peak_reserved_bytes")]
        print(f"| {row['peer']} | {row['dtype']} | {row['width']} | {row['phase']} | {speed:,.0f} "
              f"| {memory[0]:.2f} | {memory[1]:.2f} |")
    kinds = ("parameter", "gradient", "optimizer_state", "activation")
    print("\n| | dtype | width | phase | parameters | gradients | optimizer state | activations |\n" + "| --- " * 8 + "|")
    for row in rows:
        figures = " | ".join(f"{row[kind + '_bytes']:,}" for kind in kinds)
        print(f"| {row['peer']} | {row['dtype']} | {row['width']} | {row['phase']} | {figures} |")


if __name__ == "__main__":
    main()
